"""A file as it is at one moment, for the hub's client: its first bytes, always the same, while it grows or goes."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable

from opsctl.core.errors import OpsctlError
from opsctl.transfer.object_store.sources import new_digest

#: How far from a log's end its last line may have begun.
LONGEST_LINE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
#: What a repository may take as a file of git's own, which no server compares with a checksum: kept in memory.
LARGEST_REGULAR_BYTES = 10 << 20


class Changed(OpsctlError):
    """The file is no longer what it was at its moment."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


def open_bytes(data: bytes) -> int:
    """Return an open file of these bytes that is in no folder."""
    fd = os.memfd_create("opsctl-moment")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    return fd


class Moment(io.BufferedIOBase):
    """The bytes of an open file, or its whole lines, as they are when this is made; it closes `fd` at its end.

    Raises Changed, at once or while it is read, if the file becomes shorter, cannot be read, or differs from `xxh64`.
    What is written over a large file meanwhile differs from `sha256`, which the hub compares. tick: called again and
    again, to raise when no time is left.
    """

    def __init__(
        self,
        fd: int,
        name: str,
        whole_lines: bool = False,
        xxh64: str | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self._fd, self._tick, self._at = name, fd, tick, 0
        self._data: bytes | None = None
        try:
            self.stat = os.fstat(fd)
            self.size = whole_lines_bytes(fd, self.stat.st_size) if whole_lines else self.stat.st_size
            if self.size <= LARGEST_REGULAR_BYTES:
                self._data = self._pread(0, self.size)
            self.sha256, found = self._sums()
            if xxh64 is not None and found != xxh64:
                raise Changed(name, f"it has checksum {found} instead of {xxh64}")
        except BaseException:
            os.close(fd)
            raise
        blob = None if self._data is None else b"blob %d\0" % self.size + self._data
        self.git_oid = "" if blob is None else hashlib.sha1(blob, usedforsecurity=False).hexdigest()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return where the next reading begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Begin the next reading there; returns where that is."""
        self._at = max(0, {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence] + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return the next `size` bytes, all that is left without. Raises Changed, and what `tick` raises."""
        left = max(0, self.size - self._at)
        found = self._pread(self._at, left if size is None or size < 0 else min(size, left))
        self._at += len(found)
        return found

    def read1(self, size: int = -1) -> bytes:
        """As `read`."""
        return self.read(size)

    def close(self) -> None:
        """Let go of the file."""
        if not self.closed:
            os.close(self._fd)
        super().close()

    def check(self) -> None:
        """Read it all once more. Raises Changed where it is not what it was."""
        if self._sums()[0] != self.sha256:
            raise Changed(self.name, "it was written over while it was read")

    def _sums(self) -> tuple[str, str]:
        """Return the SHA-256 and the xxh64 of all of it."""
        sha256, xxh64 = hashlib.sha256(), new_digest()
        for at in range(0, self.size, _BLOCK_BYTES):
            found = self._pread(at, min(_BLOCK_BYTES, self.size - at))
            sha256.update(found)
            xxh64.update(found)
        return sha256.hexdigest(), str(xxh64.hexdigest())

    def _pread(self, at: int, wanted: int) -> bytes:
        self._tick()
        if self._data is not None:
            return self._data[at : at + wanted]
        found = b""
        while len(found) < wanted:
            try:
                more = os.pread(self._fd, wanted - len(found), at + len(found))
            except OSError as error:
                raise Changed(self.name, f"it cannot be read: {error.strerror}") from None
            if not more:
                raise Changed(self.name, "it became shorter while it was read")
            found += more
        return found


def whole_lines_bytes(fd: int, size: int) -> int:
    """Return how many of a file's first `size` bytes are whole lines; all of them where no line ends near there."""
    begin = max(0, size - LONGEST_LINE_BYTES)
    end = os.pread(fd, size - begin, begin).rfind(b"\n")
    return begin + end + 1 if end >= 0 else size
