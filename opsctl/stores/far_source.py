"""A file of a store as a source, so that fetching is sending the other way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from opsctl.stores.sources import check_digest, new_digest
from opsctl.stores.types import Expected, FarFile, FileFault


class Readable(Protocol):
    """A store's backend, as far as it is read."""

    @property
    def where(self) -> str:
        """The destination, without any secret."""

    def stat(self, name: str) -> FarFile | None:
        """The file, None where there is none."""

    def read(self, name: str, begin: int, end: int | None) -> Iterator[memoryview]:
        """The bytes from `begin` to before `end`; each piece is valid until the next."""


class FarSource:
    """The bytes from `begin` of the store's file `far_name`, known here as `name`. Raises FileFault, StoreError.

    begin: where a member of a tar begins, of which size and checksum are known; None: the whole file.
    """

    def __init__(
        self, backend: Readable, far_name: str, name: str, expected: Expected, begin: int | None = None
    ) -> None:
        self._backend, self._far_name, self.name = backend, far_name, name
        self.changed_ns: int | None = None
        if begin is None:
            far = backend.stat(far_name)
            if far is None:
                raise FileFault(f"{far_name!a} is not in {backend.where}")
            if expected.bytes not in (None, far.bytes):
                raise FileFault(f"{far_name!a} in {backend.where} has {far.bytes} bytes instead of {expected.bytes}")
            self.bytes = far.bytes
        else:
            self.bytes = expected.bytes or 0
        self._begin = begin or 0
        self.xxh64 = expected.xxh64
        self.rewind()

    def rewind(self) -> None:
        """Begin again."""
        self._pieces = self._backend.read(self._far_name, self._begin, self._begin + self.bytes)
        self._rest = memoryview(b"")
        self._digest = new_digest()

    def read_into(self, view: memoryview) -> int:
        """The next bytes, as many as there is room for, short only at the end."""
        filled = 0
        while filled < len(view):
            self._rest = self._rest or next(self._pieces, memoryview(b""))
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
        check_digest(self._far_name, found, self.xxh64, f"in {self._backend.where}")
        return found

    def close(self) -> None:
        """Let go of the connection."""
        close = getattr(self._pieces, "close", None)
        if close:
            close()
