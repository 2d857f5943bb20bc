"""One part of a probe after another, each in a process of its own that is killed when its time is up.

What hangs in a driver or a file system does not hear even that, and is left behind: the others are still told.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.formats.attempt.node_samples import BEGAN, ENDED, FAILED, LATE, LONGEST_TEXT, Effort, ProbeLine
from trainer.formats.json_text import json_line

_POLL_S = 0.01


class Tell(Protocol):
    """Says one thing that a part found."""

    def __call__(self, what: str, found: float | str, of: int | None = None) -> None:
        """found: a number or a text. of: see `ProbeLine`."""


@dataclass(frozen=True)
class Part:
    """The measurement of one process."""

    name: str
    limit_s: float
    measure: Callable[[Tell], None]
    in_turn: bool = False  # what measures how fast this host is


def say(line: ProbeLine) -> None:
    """One write, so that lines of several processes stay whole."""
    data = json_line(line).encode() + b"\n"
    with contextlib.suppress(OSError):  # the listener has gone
        os.write(sys.stdout.fileno(), data)


def run_part(node: str, part: Part, turn: str = "", turn_wait_s: float = 0.0) -> None:
    """Measure one part. turn: name of what nodes that share this host take turns by."""
    with _turn(turn, turn_wait_s) if part.in_turn and turn else contextlib.nullcontext():
        run_together(node, [part])


def run_together(node: str, parts: Sequence[Part]) -> None:
    """Measure all of `parts` at the same time, each in its process."""
    running: dict[int, tuple[Part, float]] = {}
    for part in parts:
        say(ProbeLine(node=node, part=part.name, what=BEGAN))
        running[_forked(node, part)] = (part, time.monotonic() + part.limit_s)
    while running:
        time.sleep(_POLL_S)
        for pid, (part, deadline) in list(running.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del running[pid]
                _tell_end(node, part, os.waitstatus_to_exitcode(status))
            elif time.monotonic() > deadline:
                del running[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                said = f"not done within {part.limit_s:g} s"
                say(ProbeLine(node=node, part=part.name, what=LATE, text=said))


def _tell_end(node: str, part: Part, code: int) -> None:
    if code < 0:
        said = f"its process was ended by {signal.Signals(-code).name}"
        say(ProbeLine(node=node, part=part.name, what=FAILED, text=said))
    elif code == 0:
        say(ProbeLine(node=node, part=part.name, what=ENDED))


def _forked(node: str, part: Part) -> int:
    """Fork the part's process; nothing here has started threads or touched a GPU."""
    pid = os.fork()
    if pid:
        return pid

    def tell(what: str, found: float | str, of: int | None = None) -> None:
        number, text = (None, found[:LONGEST_TEXT]) if isinstance(found, str) else (float(found), "")
        say(ProbeLine(node=node, part=part.name, what=what, number=number, text=text, of=of))

    code = 1
    try:
        part.measure(tell)
        code = 0
    except BaseException as error:
        tell(FAILED, f"{type(error).__name__}: {error}")
    os._exit(code)


@contextlib.contextmanager
def _turn(name: str, wait_s: float) -> Iterator[None]:
    """Hold this host's turn, or go on without when it is not to be had within `wait_s` seconds.

    Several of Slurm's nodes are one host on a local cluster, and would measure each other. A name without a file, which
    the kernel frees when its holder dies.
    """
    held = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + wait_s
    try:
        while True:
            try:
                held.bind(f"\0{name}")
                break
            except OSError:
                if time.monotonic() >= deadline:
                    break
            time.sleep(_POLL_S)
        yield
    finally:
        held.close()


_BLOCK_BYTES = 1 << 20
_BLOCKS_A_TIME = 8
_SHM = Path("/dev/shm")
_SHM_BYTES = 64 << 20
#: The least number of measurements for a median.
_FEWEST_TIMES = 5


def measure_disk(tell: Tell, effort: Effort) -> None:
    """MB/s of writing to the node's own disk, every 8 MiB with fsync, and of reading that again; what is free there."""
    folder = tempfile.gettempdir()
    free = os.statvfs(folder)
    tell("folder", folder)
    tell("free_gib", free.f_bavail * free.f_frsize / (1 << 30))
    block = os.urandom(_BLOCK_BYTES)
    blocks = 0
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        while blocks * _BLOCK_BYTES < effort.disk_bytes and time.perf_counter() - began < effort.disk_s:
            blocks += file.write(block * _BLOCKS_A_TIME) // _BLOCK_BYTES
            file.flush()
            os.fsync(file.fileno())
        tell("write_mbs", blocks * _BLOCK_BYTES / (time.perf_counter() - began) / 1e6)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began = time.perf_counter()
        whole = sum(found == block for found in _blocks(file.fileno()))
        tell("read_mbs", blocks * _BLOCK_BYTES / (time.perf_counter() - began) / 1e6)
    tell("wrong_blocks", blocks - whole)


def _blocks(fd: int) -> Iterator[bytes]:
    while block := os.read(fd, _BLOCK_BYTES):
        yield block


def measure_shm(tell: Tell) -> None:
    """Size of /dev/shm, what is free of it, and whether memory there holds what is written to it.

    Too little of it ends this process by SIGBUS, as it ends a training's.
    """
    size = os.statvfs(_SHM)
    tell("size_gib", size.f_blocks * size.f_frsize / (1 << 30))
    tell("free_gib", size.f_bavail * size.f_frsize / (1 << 30))
    block = os.urandom(_BLOCK_BYTES)
    with tempfile.TemporaryFile(dir=_SHM) as file:
        file.truncate(_SHM_BYTES)
        with mmap.mmap(file.fileno(), _SHM_BYTES) as memory:
            for start in range(0, _SHM_BYTES, _BLOCK_BYTES):
                memory[start : start + _BLOCK_BYTES] = block
            wrong = sum(memory[start : start + _BLOCK_BYTES] != block for start in range(0, _SHM_BYTES, _BLOCK_BYTES))
    tell("wrong_blocks", wrong)


def measure_run_folder(tell: Tell, folder: Path, node: str) -> None:
    """Write a file in the run's folder, and see by its mtime how far this clock is from the file server's."""
    path = folder / f".probe-{node}-{os.getpid()}"
    data = os.urandom(4096)
    began = time.perf_counter()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        before = time.time()
        os.write(fd, data)
        os.fsync(fd)
        after = time.time()
        tell("write_ms", 1e3 * (time.perf_counter() - began))
        tell("clock_offset_s", _outside(os.fstat(fd).st_mtime, before, after))
        same = hashlib.sha256(os.pread(fd, len(data), 0)).digest() == hashlib.sha256(data).digest()
        tell("wrong_blocks", 0 if same else 1)
    finally:
        os.close(fd)
        path.unlink()


def _outside(server: float, before: float, after: float) -> float:
    """Seconds by which this clock is ahead, 0 where the server's time lies between the two looks at it."""
    return before - server if server < before - 1 else min(0.0, after - server)


def seconds_of(work: Callable[[], object], window_s: float) -> float:
    """Seconds of one `work`: the median over `window_s`, at least five times, after one that does not count.

    The median and not the best: a node that is held up again and again has moments in which it is not.
    """
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _FEWEST_TIMES or time.perf_counter() - began < window_s:
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return statistics.median(times)
