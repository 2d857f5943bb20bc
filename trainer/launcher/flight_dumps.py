"""NCCL's flight recorders of a node's ranks: where they write, and asking them for a dump while their ranks hang."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.formats.attempt.error_file import GroupProgress, read_dump

#: What a rank's dump and the pipe that asks for one are called, before its number.
_DUMP = "flight-"
_LARGEST_BYTES = 256 << 20
_POLL_S = 0.1


def record_in(folder: Path) -> None:
    """Have the ranks that this process forks record, and write below `folder`, as far as the user has not said else.

    NCCL's ranks alone read these variables; torch has called them otherwise before 2.10, and warns of the old names.
    A rank fails that cannot make its pipe: where the file system has none, it is not told to, and is not asked.
    """
    import torch

    has_new_names = hasattr(torch._C, "_distributed_c10d") and hasattr(torch._C._distributed_c10d, "_dump_fr_trace")
    size, file = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    if not has_new_names:
        size, file = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    if not {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"} & os.environ.keys():
        os.environ.setdefault(size, "2000")
        os.environ.setdefault(file, str(folder / _DUMP))
    if _has_pipes(folder):
        os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(folder / _DUMP))


def _has_pipes(folder: Path) -> bool:
    """Whether the file system of `folder` has named pipes, as some that are shared do not."""
    pipe = folder / f".{_DUMP}{os.getpid()}.pipe"
    try:
        os.mkfifo(pipe)
        pipe.unlink()
    except OSError:
        return False
    return True


def dumped(folder: Path, ranks: Sequence[int], wait_s: float) -> list[GroupProgress]:
    """Ask the recorders of these ranks, and read what they write within `wait_s` seconds; those that answer nothing,
    without NCCL all of them, are left out.
    """
    seen = {rank: _changed(folder / f"{_DUMP}{rank}") for rank in ranks}  # before anybody is asked
    before = {rank: changed for rank, changed in seen.items() if _ask(folder / f"{_DUMP}{rank}.pipe")}
    found: list[GroupProgress] = []
    until = time.monotonic() + wait_s
    while before:
        for rank in [one for one, changed in before.items() if _changed(folder / f"{_DUMP}{one}") != changed]:
            with contextlib.suppress(OSError, ValueError):  # the rest of it is still to come
                found += read_dump(_read(folder / f"{_DUMP}{rank}"), rank)
                del before[rank]
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_S)
    return found


def _ask(pipe: Path) -> bool:
    """Whether somebody listens there, who has been asked now."""
    try:
        fd = _own(pipe, os.O_WRONLY, stat.S_ISFIFO)
    except OSError:
        return False
    try:
        return os.write(fd, b"1\n") > 0
    except OSError:
        return False
    finally:
        os.close(fd)


def _own(path: Path, access: int, is_kind: Callable[[int], bool]) -> int:
    """A descriptor of what this account has put there, of that kind. Others may write in the folder too: their links,
    pipes and files are not opened for them, and keep nobody waiting. Raises OSError.
    """
    fd = os.open(path, access | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    found = os.fstat(fd)
    if is_kind(found.st_mode) and found.st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "somebody else's, or not what it is called", str(path))


def _changed(path: Path) -> tuple[int, int]:
    try:
        found = path.lstat()
        return found.st_mtime_ns, found.st_size
    except OSError:
        return 0, 0


def _read(path: Path) -> bytes:
    with os.fdopen(_own(path, os.O_RDONLY, stat.S_ISREG), "rb") as file:
        return file.read(_LARGEST_BYTES)
