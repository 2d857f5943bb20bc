"""What is read to be sent: a file by its descriptor, known to be the same file, of the same size, to its last byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from opsctl.transfer.object_store.below import folder_of, open_below
from opsctl.transfer.object_store.types import Expected, FileFault

CHUNK_BYTES = 4 << 20


class Source(Protocol):
    """Bytes that are read once from the beginning to the end, or again from the beginning."""

    name: str
    bytes: int
    xxh64: str | None  # what it has to be, where that is known
    changed_ns: int | None  # when it was last changed, for what can keep it

    def read_into(self, view: memoryview) -> int:
        """Fill `view` as far as there is anything left; returns how many bytes. Raises FileFault."""

    def rewind(self) -> None:
        """Begin again."""

    def finish(self) -> str:
        """The xxh64 of all that was read, once it was. Raises FileFault where that is not what had to be sent."""

    def close(self) -> None:
        """Let go of it."""


def new_digest() -> Any:
    """xxh64, empty."""
    import xxhash

    return xxhash.xxh64()


def check_digest(name: str, found: str, expected: str | None, where: str) -> None:
    """Raise FileFault where the contents have another checksum than they had to."""
    if expected is not None and found != expected:
        raise FileFault(f"{name!a} has checksum {found} {where} instead of {expected}")


class FileSource:
    """A file below a folder that is held open. Raises FileFault where it cannot be read or is not as expected."""

    def __init__(self, folder: int, name: str, expected: Expected) -> None:
        self._folder, self.name, self._grows = folder, name, expected.grows
        try:
            self._fd = open_below(folder, name)
        except OSError as error:
            raise FileFault(f"{name!a} cannot be read: {error.strerror}") from None
        self._first = os.fstat(self._fd)
        there = self._first.st_size
        self.bytes = there if expected.bytes is None else expected.bytes
        if there < self.bytes or (there > self.bytes and not self._grows):
            os.close(self._fd)
            raise FileFault(f"{name!a} has {there} bytes instead of {self.bytes}")
        self.xxh64 = expected.xxh64
        self.changed_ns: int | None = self._first.st_mtime_ns
        self.rewind()

    def rewind(self) -> None:
        """Begin again."""
        self.at, self._digest = 0, new_digest()

    def read_into(self, view: memoryview) -> int:
        """The next bytes, as many as there is room for, short only at the end."""
        view = view[: self.bytes - self.at]
        self.read_at(self.at, view)
        self._digest.update(view)
        self.at += len(view)
        return len(view)

    def read_at(self, begin: int, view: memoryview) -> None:
        """Fill `view` with the bytes from `begin`, whatever else is read of it, by whichever thread."""
        filled = 0
        while filled < len(view):
            try:
                count = os.preadv(self._fd, [view[filled:]], begin + filled)
            except OSError as error:
                raise FileFault(f"{self.name!a} cannot be read: {error.strerror}") from None
            if not count:
                raise FileFault(f"{self.name!a} shrank to {os.fstat(self._fd).st_size} bytes while it was read")
            filled += count

    def finish(self) -> str:
        """Look once more whether it is the file that was opened, as it was."""
        self.check_unchanged()
        found = str(self._digest.hexdigest())
        check_digest(self.name, found, self.xxh64, "here")
        return found

    def check_unchanged(self) -> None:
        """Raise FileFault where it is not the file that was opened, as it was."""
        now = os.fstat(self._fd)
        if now.st_size < self.bytes or (now.st_size != self._first.st_size and not self._grows):
            change = "grew" if now.st_size > self._first.st_size else "shrank"
            raise FileFault(f"{self.name!a} {change} to {now.st_size} bytes while it was read")
        if now.st_mtime_ns != self._first.st_mtime_ns and not self._grows:
            raise FileFault(f"{self.name!a} was written to while it was read")
        if self._named() != (now.st_dev, now.st_ino):
            raise FileFault(f"{self.name!a} was replaced or removed while it was read")

    def _named(self) -> tuple[int, int] | None:
        try:
            with folder_of(self._folder, self.name) as (folder, last):
                named = os.stat(last, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        return named.st_dev, named.st_ino

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)


class PiecesSource:
    """A source whose bytes come in pieces, each valid until the next is asked for."""

    def __init__(self, name: str, size: int, xxh64: str | None, pieces: Callable[[], Iterator[memoryview]]) -> None:
        self.name, self.bytes, self.xxh64 = name, size, xxh64
        self.changed_ns: int | None = None
        self._begin = pieces
        self.rewind()

    def rewind(self) -> None:
        """Begin again."""
        self._pieces, self._rest, self._digest = self._begin(), memoryview(b""), new_digest()

    def read_into(self, view: memoryview) -> int:
        """The next bytes, as many as there is room for, short only at the end."""
        filled = 0
        while filled < len(view):
            while not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = piece
            if not self._rest:
                break
            count = min(len(view) - filled, len(self._rest))
            view[filled : filled + count] = self._rest[:count]
            self._rest = self._rest[count:]
            filled += count
        self._digest.update(view[:filled])
        return filled

    def finish(self) -> str:
        """The checksum of what came."""
        found = str(self._digest.hexdigest())
        check_digest(self.name, found, self.xxh64, "where it was read")
        return found

    def close(self) -> None:
        """Let go of what the pieces come from."""
        close = getattr(self._pieces, "close", None)
        if close:
            close()


def digest_of(source: Source) -> str:
    """The checksum of a source, which is read for that and stands at its beginning again. Raises FileFault."""
    view = memoryview(bytearray(CHUNK_BYTES))
    while source.read_into(view):
        pass
    found = source.finish()
    source.rewind()
    return found
