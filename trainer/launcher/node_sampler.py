"""Samples of a node during an attempt: GPUs, host memory, load."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import trainer
from trainer.core.files import HeldFolder, create_file, write_atomically
from trainer.core.memory_limit import limit_of_cgroups, memory_lines
from trainer.formats.attempt.node_samples import (
    LARGEST_BYTES,
    GpuSample,
    NodeSample,
    RankTiming,
    samples_file,
    timings_file,
)
from trainer.formats.json_text import json_line
from trainer.formats.tolerant import decode

#: NVML's bits of why a clock is held down, in the order of their numbers; idle and set by a person are no throttling.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0


def gpu_samples() -> tuple[GpuSample, ...]:
    """All that this process may see; empty without any, or without NVML."""
    nvml = _nvml()
    if nvml is None:
        return ()
    found = []
    with contextlib.suppress(Exception):  # a driver that was reloaded meanwhile
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(Exception):  # a GPU that has fallen off the bus
                found.append(_one(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index)))
    return tuple(found)


@functools.cache
def _nvml() -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no binding, no driver, no GPU
        return None
    return pynvml


def _one(nvml: Any, index: int, handle: Any) -> GpuSample:
    def asked(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(handle, *arguments)
        except Exception:  # not every GPU tells everything
            return None

    memory = asked(nvml.nvmlDeviceGetMemoryInfo)
    power_mw = asked(nvml.nvmlDeviceGetPowerUsage)
    bits = asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    return GpuSample(
        index=index,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_bytes=None if memory is None else int(memory.total),
        temperature_c=asked(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        clock_mhz=asked(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        most_clock_mhz=asked(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        power_w=None if power_mw is None else power_mw / 1000,
        ecc_corrected=asked(nvml.nvmlDeviceGetTotalEccErrors, _CORRECTED, _VOLATILE),
        ecc_uncorrected=asked(nvml.nvmlDeviceGetTotalEccErrors, _UNCORRECTED, _VOLATILE),
        throttled=tuple(words for bit, words in _REASONS.items() if bits & bit),
    )


#: Between two samples; between two looks at how full memory is; from which share on each look is written.
SAMPLE_S, LOOK_S, SHORT = 30.0, 2.0, 0.9
#: What the last sample may take once launcher and ranks are gone.
LAST_S = 20.0
_LESS_PRIORITY = 10
_LONGEST_LINE = 4096


def start_sampler(folder: Path, node_rank: int, node_name: str, every_s: float = SAMPLE_S) -> int | None:
    """Start it for this node; the descriptor into which ranks write, None where it cannot be started."""
    reading, writing = os.pipe()
    above = str(Path(trainer.__file__).resolve().parents[1])
    inherited = os.environ.get("PYTHONPATH")
    command = [sys.executable, "-P", "-m", "trainer.launcher.node_sampler"]
    try:
        subprocess.Popen(
            [*command, str(folder), str(node_rank), node_name, str(every_s)],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": f"{above}:{inherited}" if inherited else above},
            start_new_session=True,  # what is sent to the launcher's process group is not for it
        )
    except OSError:
        os.close(writing)
        return None
    finally:
        os.close(reading)
    os.set_blocking(writing, False)
    return writing


def main(words: Sequence[str]) -> int:
    """Sample until stdin closes."""
    folder, node_rank, node = HeldFolder(Path(words[0])), int(words[1]), words[2]
    every_s = float(words[3]) if len(words) > 3 else SAMPLE_S
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_LESS_PRIORITY)
    threading.Thread(target=_end_with_the_others, daemon=True).start()
    samples = BoundedLines(folder, samples_file(node_rank))
    timings = BoundedLines(folder, timings_file(node_rank))
    written_at, look_at, rest, share = -every_s, 0.0, b"", 0.0
    while True:
        at = time.monotonic()
        if at >= look_at:
            look_at = at + min(LOOK_S, every_s)
            was, share = share, _memory_share()
            if at - written_at >= every_s or (share >= SHORT and abs(share - was) >= 0.005):
                samples.append(json_line(sample(node, folder)))
                written_at = at
        ready, _, _ = select.select([0], [], [], max(0.0, look_at - time.monotonic()))
        if not ready:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            samples.append(json_line(sample(node, folder)))
            return 0
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[-_LONGEST_LINE:]
        timed = (decode(line, RankTiming) for line in lines)
        timings.append(*(json_line(msgspec.structs.replace(one, node=node)) for one in timed if one is not None))


def _end_with_the_others() -> None:
    """End the process some time after the last writer of its stdin, also out of a call that a dead server holds up."""
    gone = select.poll()
    gone.register(0, 0)  # no events: only the hang-up is reported
    gone.poll()
    time.sleep(LAST_S)
    os._exit(1)


class BoundedLines:
    """A file of lines that is only added to, and of which the newer half is kept when it becomes too long."""

    def __init__(self, folder: HeldFolder, name: str, most_bytes: int = LARGEST_BYTES) -> None:
        self._folder, self._name, self._most_bytes = folder, name, most_bytes

    def append(self, *lines: str) -> None:
        """Add lines. What the disk does not take is lost; what is no file of our own is left alone."""
        if not lines:
            return
        data = "".join(f"{line}\n" for line in lines).encode()
        with contextlib.suppress(OSError):
            path = self._folder.place() / self._name
            fd = self._opened(path)
            try:
                os.write(fd, data)
                size, half = os.fstat(fd).st_size, self._most_bytes // 2
                # Of what was opened: the name may mean a file by now that only we may read.
                kept = os.pread(fd, half, size - half) if size > self._most_bytes else b""
            finally:
                os.close(fd)
            if kept:
                write_atomically(path, kept.partition(b"\n")[2].decode(errors="replace"))

    @staticmethod
    def _opened(path: Path) -> int:
        """For reading too where it was there. Raises OSError, also where anything but a file of our own is there."""
        try:
            # Opening a FIFO for reading and writing does not block.
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return create_file(path)
        own = os.fstat(fd)
        if stat.S_ISREG(own.st_mode) and own.st_uid == os.geteuid() and own.st_nlink == 1:
            return fd
        os.close(fd)
        raise OSError(errno.EINVAL, "not a file of our own", str(path))


def sample(node: str, folder: HeldFolder) -> NodeSample:
    """Return a sample of the node now."""
    shm_bytes, shm_used_bytes, _ = _disk(lambda: "/dev/shm")
    return NodeSample(
        at=datetime.now(UTC).astimezone(),
        node=node,
        **_memory(),
        shm_bytes=shm_bytes,
        shm_used_bytes=shm_used_bytes,
        tmp_free_bytes=_disk(lambda: "/tmp")[2],
        run_free_bytes=_disk(folder.place)[2],
        load=round(os.getloadavg()[0], 2),
        cpus=os.cpu_count() or 0,
        gpus=gpu_samples(),
    )


def _memory_share() -> float:
    return NodeSample(at=datetime.now(UTC), node="", **_memory()).memory_share


def _memory() -> dict[str, Any]:
    """Return the fields of NodeSample about memory and its limit."""
    memory = memory_lines()
    limit, limited = limit_of_cgroups() or (None, None)
    return {
        "memory_bytes": memory.get("MemTotal", 0),
        "available_bytes": memory.get("MemAvailable", 0),
        "limit_bytes": limit,
        "limited_bytes": limited,
        "swap_bytes": memory.get("SwapTotal", 0),
        "swap_used_bytes": memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
    }


def _disk(path: Callable[[], str | Path]) -> tuple[int, int, int | None]:
    """Return the total, used and free bytes of a file system; zeros and None if it cannot be read."""
    try:
        return shutil.disk_usage(path())
    except OSError:
        return 0, 0, None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
