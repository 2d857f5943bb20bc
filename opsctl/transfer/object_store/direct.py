"""Bytes of a file moved past the page cache where its file system can: half the work, and the disk itself answers."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from functools import partial

from opsctl.transfer.object_store.sources import CHUNK_BYTES
from opsctl.transfer.object_store.types import FileFault

#: What file systems want offsets, lengths and memory in multiples of; those that want more are asked in the usual way.
_BLOCK_BYTES = 4096
#: A shorter file is not worth a wait for the disk before its fsync.
_LEAST_BYTES = 1 << 20


def make_buffer(most: int) -> memoryview:
    """Room for `most` bytes, or a piece of them, in whole blocks where a disk can put them."""
    size = min(CHUNK_BYTES, max(1, most))
    return memoryview(mmap.mmap(-1, size + -size % _BLOCK_BYTES))


def write_piece(fd: int, view: memoryview) -> None:
    """Write at the descriptor's place; only a file's last piece may be of another length than whole blocks."""
    at = 0
    while at < len(view):
        whole = (len(view) - at) // _BLOCK_BYTES * _BLOCK_BYTES
        if len(view) < _LEAST_BYTES or not whole:
            _past_the_cache(fd, False)
            at += os.write(fd, view[at:])
        else:
            _past_the_cache(fd, True)
            at += _either_way(fd, partial(os.write, fd, view[at : at + whole]))


def pieces(fd: int, begin: int, end: int, name: str) -> Iterator[memoryview]:
    """The bytes from `begin` to before `end`, as the disk has them, in pieces that are soon overwritten.

    Raises FileFault where the file ends before.
    """
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    view = make_buffer(end - begin // _BLOCK_BYTES * _BLOCK_BYTES)
    _past_the_cache(fd, True)
    while begin < end:
        before = begin % _BLOCK_BYTES
        count = _either_way(fd, partial(os.preadv, fd, [view], begin - before))
        piece = view[before : min(count, before + end - begin)]
        if not piece:
            raise FileFault(f"{name!a} ends after {begin} bytes")
        begin += len(piece)
        yield piece


def _past_the_cache(fd: int, is_past: bool) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    wanted = flags | os.O_DIRECT if is_past else flags & ~os.O_DIRECT
    if wanted != flags:
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, wanted)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise


def _either_way(fd: int, move: Callable[[], int]) -> int:
    """What `move` returns: some file systems say only then that they cannot do it past the cache."""
    try:
        return move()
    except OSError as error:
        if error.errno != errno.EINVAL or not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise
    _past_the_cache(fd, False)
    return move()
