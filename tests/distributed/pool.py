"""Real gloo ranks for tests, forked from one process that has imported torch and DeepSpeed once.

    def losses(steps: int) -> list[float]: ...      # a module-level function; runs in every rank
    results = pool.run(8, losses, 20)               # its return value per rank, in rank order

    launcher = pool.start(main, arguments, output=file)   # one process, which is left running

A module of tests may name in RANKS_IMPORT what its ranks import: that is then imported once, before they are forked.
Each run forks fresh ranks with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, so nothing of one test is
left in the next. A rank that raises, dies or is late ends the others and raises RanksFailed with its traceback.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.free_port import free_port

ROOT = Path(__file__).resolve().parents[2]
IMPORT_S = 120.0
#: What nearly every rank imports; the parent imports it for all of them.
_IMPORTED_ONCE = ("numpy.random", "trainer.pretrain_gpt", "trainer.kernels.cpp")
_PR_SET_PDEATHSIG = 1


class RanksFailed(AssertionError):
    """Some rank of a run raised, died or did not end in time; the text has each failed rank's traceback."""


@dataclass(frozen=True)
class Started:
    """A process that the parent of ranks has forked; used like a `subprocess.Popen`."""

    pid: int
    status_file: Path

    def poll(self) -> int | None:
        """Return the exit status, minus the signal that ended it, or None while the process runs."""
        return int(self.status_file.read_text()) if self.status_file.exists() else None

    def wait(self, timeout: float = 60.0) -> int:
        """Return the exit status once there is one. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.02)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Pool:
    """A parent of ranks. Started at the first `run`; ends at `close`, or with the thread that started it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, world_size: int, function: Callable[..., Any], *args: Any, timeout_s: float = 120.0) -> list[Any]:
        """`function(*args)` in each of `world_size` ranks; what they return, by rank. Everything must pickle."""
        answer = self._answer("run", function, (world_size, args, timeout_s), timeout_s)
        failures = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(answer) if not good]
        if failures:
            raise RanksFailed("\n".join(failures))
        return [value for _, value in answer]

    def start(
        self, function: Callable[..., int], *args: Any, output: Path, environment: Mapping[str, str] | None = None
    ) -> Started:
        """Run `function(*args)` in one process, whose exit status it returns. Both outputs go to the file `output`."""
        output.touch()
        pid = self._answer("start", function, (args, str(output), dict(environment or {})), 0.0)
        return Started(pid, _status_file(output))

    def _answer(self, kind: str, function: Callable[..., Any], details: Any, timeout_s: float) -> Any:
        process = self._started()
        _send(process.stdin, (kind, function.__module__, function.__qualname__, details))
        answer = _receive(process.stdout, timeout_s + IMPORT_S)
        if answer is None:
            self.close()
            raise RanksFailed(f"the parent of the ranks did not answer within {timeout_s + IMPORT_S:.0f} s, or died")
        return answer

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            if not Path("/dev/nvidiactl").exists():
                environment["DS_ACCELERATOR"] = "cpu"
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.distributed.pool"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process


def _send(stream: IO[bytes] | None, value: Any) -> None:
    assert stream is not None
    data = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes] | None, timeout_s: float) -> Any:
    """Return the next message, or None at the stream's end or when `timeout_s` have passed."""
    assert stream is not None
    deadline = time.monotonic() + timeout_s
    data, wanted = b"", 8
    while len(data) < wanted:
        ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(stream.fileno(), 1 << 20)
        if not part:
            return None
        data += part
        if len(data) >= 8:
            wanted = 8 + struct.unpack("<Q", data[:8])[0]
    return pickle.loads(data[8:wanted])


def serve() -> None:
    """Import what a launcher imports before it forks, then fork as requested until the requester is gone."""
    _die_with_the_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what ranks print must not get between the answers
    from trainer.core.preload import import_engine

    import_engine(_IMPORTED_ONCE)
    while (request := _receive(sys.stdin.buffer, 86_400.0)) is not None:
        kind, module, name, details = request
        with contextlib.suppress(Exception):  # each rank raises it again, and reports it
            for needed in getattr(importlib.import_module(module), "RANKS_IMPORT", ()):
                importlib.import_module(needed)
        _load_libraries()
        gc.collect()
        gc.freeze()  # a collection in a rank would copy the pages of all these objects
        _send(answers, _run_ranks(module, name, *details) if kind == "run" else _start(module, name, *details))


def _load_libraries() -> None:
    """Load what is built of our C++ libraries, which each rank would look for otherwise."""
    from trainer.kernels.native import libraries

    for load in (libraries.operations, libraries.data):
        if isinstance(load(), libraries.NotBuilt):
            load.cache_clear()  # a test may build it


def _start(module: str, name: str, args: Any, output: str, environment: dict[str, str]) -> int:
    """Fork one process, and another one that waits for it and writes its exit status down."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        _die_with_the_parent()
        started = os.fork()
        if started == 0:
            _be_started(module, name, args, output, environment)
        os.write(writing, struct.pack("<q", started))
        status_file = _status_file(Path(output))
        unfinished = status_file.with_suffix(".unfinished")
        unfinished.write_text(str(os.waitstatus_to_exitcode(os.waitpid(started, 0)[1])))
        unfinished.rename(status_file)
        os._exit(0)
    pid: int = struct.unpack("<q", os.read(reading, 8))[0]
    os.close(reading)
    os.close(writing)
    return pid


def _be_started(module: str, name: str, args: Any, output: str, environment: dict[str, str]) -> None:
    _die_with_the_parent()
    status = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = os.fdopen(1, "w", 1, closefd=False)
        os.environ |= environment
        tempfile.tempdir = None  # the environment may name another one than the parent found
        status = _function(module, name)(*args)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _status_file(output: Path) -> Path:
    return output.with_suffix(".status")


def _function(module: str, name: str) -> Any:
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    return function


def _die_with_the_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run_ranks(module: str, name: str, world_size: int, args: Any, timeout_s: float) -> list[tuple[bool, Any]]:
    port = free_port()
    ranks: list[tuple[int, int]] = []  # (process id, read end of its answer)
    for rank in range(world_size):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _be_rank(rank, world_size, port, module, name, args, writing)
        os.close(writing)
        ranks.append((child, reading))
    try:
        return _collect(ranks, timeout_s)
    finally:
        for child, reading in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)


def _collect(ranks: list[tuple[int, int]], timeout_s: float) -> list[tuple[bool, Any]]:
    """Every rank's answer. After the first failure the others have two seconds more, to say what they met."""
    deadline = time.monotonic() + timeout_s
    data = {reading: b"" for _, reading in ranks}
    results: dict[int, tuple[bool, Any]] = {}
    while len(results) < len(ranks) and time.monotonic() < deadline:
        open_ends = [reading for reading in data if reading not in results]
        for reading in select.select(open_ends, [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(reading, 1 << 20)
            data[reading] += part
            if part:
                continue
            results[reading] = pickle.loads(data[reading]) if data[reading] else (False, "died without an answer")
            if not results[reading][0]:
                deadline = min(deadline, time.monotonic() + 2)
    late = (False, f"did not end within {timeout_s:g} s, or was waiting when another rank failed")
    return [results.get(reading, late) for _, reading in ranks]


def _be_rank(rank: int, world_size: int, port: int, module: str, name: str, args: Any, writing: int) -> None:
    """Run the function as one rank, answer, and end without the parent's exit handlers."""
    _die_with_the_parent()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        import torch.distributed as dist

        answer = (True, _function(module, name)(*args))
        data = pickle.dumps(answer)
        if dist.is_initialized():
            dist.barrier()  # rank 0 holds the store and must not leave first
    except BaseException:
        data = pickle.dumps((False, traceback.format_exc()))
    with os.fdopen(writing, "wb") as stream:
        stream.write(data)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    serve()
