"""Where a node writes: its own disk, /dev/shm and the run's folder; and what time the file server says it is."""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trainer.formats.attempt.node_samples import Effort
from trainer.launcher.probing.parts import Tell

_BLOCK_BYTES = 1 << 20
_BLOCKS_A_TIME = 8
_SHM = Path("/dev/shm")
_SHM_BYTES = 64 << 20


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
