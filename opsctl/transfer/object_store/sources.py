"""Contents to be sent: a file here, bytes in memory, a file of a store or a part of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opsctl.transfer.object_store.below import folder_of, open_below
from opsctl.transfer.object_store.types import Expected, FileFault, check_name

CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class Source:
    """A content that can be read from its beginning any number of times."""

    name: str
    bytes: int
    xxh64: str | None  # the checksum that it must have; None: any
    chunks: Callable[[], Iterator[memoryview]]  # each chunk is valid until the next one; raises FileFault
    changed_ns: int | None = None  # its mtime, for a place that can keep it
    where: str = "here"

    def checked(self, digest: Any) -> Iterator[memoryview]:
        """Yield its chunks and add them to `digest`. Raises FileFault where it has another size or checksum."""
        count = 0
        for chunk in self.chunks():
            digest.update(chunk)
            count += len(chunk)
            yield chunk
        if count != self.bytes:
            raise FileFault(f"{self.name!a} has {count} bytes {self.where} instead of {self.bytes}")
        check_digest(self.name, digest.hexdigest(), self.xxh64, self.where)


def new_digest() -> Any:
    """Return an empty xxh64."""
    import xxhash

    return xxhash.xxh64()


def check_digest(name: str, found: str, expected: str | None, where: str) -> None:
    """Raise FileFault where a content has another checksum than it must have."""
    if expected is not None and found != expected:
        raise FileFault(f"{name!a} has checksum {found} {where} instead of {expected}")


def digest_of(source: Source) -> str:
    """Read a source and return its checksum. Raises FileFault."""
    digest = new_digest()
    for _ in source.checked(digest):
        pass
    return str(digest.hexdigest())


def bytes_source(name: str, data: bytes) -> Source:
    """Return a source of bytes in memory."""
    return Source(name, len(data), None, lambda: iter((memoryview(data),)))


def file_source(folder: int, name: str, expected: Expected) -> Source:
    """Return a source of the file `name` below an open folder.

    Raises FileFault, now or while it is read, where it cannot be read, is not as expected, or is no longer the file
    that it was: it was replaced, written to, or cut short.
    """
    check_name(name)
    fd, first = _opened(folder, name)
    os.close(fd)
    size = first.st_size if expected.bytes is None else expected.bytes
    if first.st_size < size or (first.st_size > size and not expected.grows):
        raise FileFault(f"{name!a} has {first.st_size} bytes instead of {size}")

    def chunks() -> Iterator[memoryview]:
        fd, _ = _opened(folder, name)
        try:
            _check_unchanged(folder, name, fd, first, size, expected.grows)
            yield from read_chunks(fd, 0, size, name)
            _check_unchanged(folder, name, fd, first, size, expected.grows)
        finally:
            os.close(fd)

    return Source(name, size, expected.xxh64, chunks, first.st_mtime_ns)


def read_chunks(fd: int, begin: int, end: int, name: str) -> Iterator[memoryview]:
    """Yield a file's bytes from `begin` to before `end`. Raises FileFault where it ends before, or cannot be read."""
    view = memoryview(bytearray(max(1, min(CHUNK_BYTES, end - begin))))
    while begin < end:
        try:
            count = os.preadv(fd, [view[: end - begin]], begin)
        except OSError as error:
            raise FileFault(f"{name!a} cannot be read: {error.strerror}") from None
        if not count:
            raise FileFault(f"{name!a} shrank to {os.fstat(fd).st_size} bytes while it was read")
        begin += count
        yield view[:count]


def _opened(folder: int, name: str) -> tuple[int, os.stat_result]:
    try:
        fd = open_below(folder, name)
    except OSError as error:
        raise FileFault(f"{name!a} cannot be read: {error.strerror}") from None
    return fd, os.fstat(fd)


def _check_unchanged(folder: int, name: str, fd: int, first: os.stat_result, size: int, grows: bool) -> None:
    now = os.fstat(fd)
    try:
        with folder_of(folder, name) as (above, last):
            named = os.stat(last, dir_fd=above, follow_symlinks=False)
        is_same = (named.st_dev, named.st_ino) == (now.st_dev, now.st_ino) == (first.st_dev, first.st_ino)
    except OSError:
        is_same = False
    if not is_same:
        raise FileFault(f"{name!a} was replaced or removed while it was read")
    if now.st_size < size or (now.st_size != first.st_size and not grows):
        change = "grew" if now.st_size > first.st_size else "shrank"
        raise FileFault(f"{name!a} {change} to {now.st_size} bytes while it was read")
    if now.st_mtime_ns != first.st_mtime_ns and not grows:
        raise FileFault(f"{name!a} was written to while it was read")
