"""A file as it is at one moment, while it grows, shrinks or goes: so many of its first bytes, always the same."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable

from opsctl.transfer.object_store.sources import new_digest

#: How far from a log's end its last line may have begun.
LONGEST_LINE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
#: What a place may take as a file of git's own; larger contents are never read twice into memory.
LARGEST_REGULAR_BYTES = 10 << 20


class Changed(Exception):
    """The file is no longer what it was at its moment; the text says what happened, without its name."""


def open_bytes(data: bytes) -> int:
    """Return an open file of these bytes that is in no folder."""
    fd = os.memfd_create("opsctl-moment")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    return fd


class Moment(io.BufferedIOBase):
    """The first `size` bytes of an open file, or its whole lines, for readers of a file.

    The first complete reading computes `sha256` and `git_oid`; a later complete reading gets the same bytes, or
    Changed. A file that became shorter, or differs from `xxh64`, is Changed too. `still_time` is called repeatedly, to
    raise when no time is left. Closes `fd` when it is closed.
    """

    def __init__(
        self,
        fd: int,
        whole_lines: bool = False,
        xxh64: str | None = None,
        still_time: Callable[[], None] | None = None,
    ) -> None:
        self._fd = fd
        self.stat = os.fstat(fd)
        self.size = size = whole_lines_bytes(fd, self.stat.st_size) if whole_lines else self.stat.st_size
        self._at = 0
        self._hashed = 0
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False) if size <= LARGEST_REGULAR_BYTES else None
        self._xxh64 = None if xxh64 is None else new_digest()
        self._said = xxh64
        self._still_time = still_time
        self._why_changed: str | None = None

    @property
    def sha256(self) -> str:
        """Return the checksum of its content, in hexadecimal digits. Raises Changed."""
        self._hash_all()
        return self._sha256.hexdigest()

    @property
    def git_oid(self) -> str:
        """Git's name of a blob of this content; empty of what is too large to be one. Raises Changed."""
        self._hash_all()
        return self._git.hexdigest() if self._git else ""

    def changed(self) -> str | None:
        """Return why it cannot be read any more as it was; None where it can."""
        return self._why_changed

    def fileno(self) -> int:
        """Return the descriptor of the open file, which may have more in it."""
        return self._fd

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
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return the next `size` bytes, all that is left without. Raises Changed, and what `still_time` raises."""
        if size is None or size < 0:
            return self._rest()
        if self._still_time is not None:
            self._still_time()
        wanted = max(0, min(size, self.size - self._at))
        found = self._pread(wanted, self._at)
        self._hash(found)
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
        again, at = hashlib.sha256(), 0
        while at < self.size:
            found = self._pread(min(_BLOCK_BYTES, self.size - at), at)
            again.update(found)
            at += len(found)
        if again.hexdigest() != self.sha256:
            raise self._no_more("it was written over while it was read")

    def _pread(self, wanted: int, at: int) -> bytes:
        found = b""
        while len(found) < wanted:
            try:
                more = os.pread(self._fd, wanted - len(found), at + len(found))
            except OSError as error:
                raise self._no_more(f"it cannot be read: {error.strerror}") from None
            if not more:
                raise self._no_more("it became shorter while it was read")
            found += more
        return found

    def _rest(self) -> bytes:
        """Return all that is left, compared with its checksum: it goes where no server checks one."""
        sha256, begin = self.sha256, self._at
        found = b"".join(iter(lambda: self.read(_BLOCK_BYTES), b""))
        if begin == 0 and hashlib.sha256(found).hexdigest() != sha256:
            raise self._no_more("it was written over while it was read")
        return found

    def _hash(self, found: bytes) -> None:
        if self._at > self._hashed or self._at + len(found) <= self._hashed:
            return
        new = found[self._hashed - self._at :]
        self._sha256.update(new)
        if self._git is not None:
            self._git.update(new)
        if self._xxh64 is not None:
            self._xxh64.update(new)
        self._hashed += len(new)
        if self._hashed == self.size:
            self._check()

    def _check(self) -> None:
        if self._xxh64 is not None and self._xxh64.hexdigest() != self._said:
            raise self._no_more(f"it has checksum {self._xxh64.hexdigest()} instead of {self._said}")

    def _no_more(self, why: str) -> Changed:
        self._why_changed = why
        return Changed(why)

    def _hash_all(self) -> None:
        begin = self._at
        self._at = self._hashed
        while self._hashed < self.size:
            self.read(_BLOCK_BYTES)
        self._at = begin


def whole_lines_bytes(fd: int, size: int) -> int:
    """Return how many of a file's first `size` bytes are whole lines; all of them where no line ends near there."""
    begin = max(0, size - LONGEST_LINE_BYTES)
    end = os.pread(fd, size - begin, begin).rfind(b"\n")
    return begin + end + 1 if end >= 0 else size
