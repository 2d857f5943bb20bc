"""Files of a store as sources, so that fetching is sending the other way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from opsctl.transfer.object_store.sources import PiecesSource
from opsctl.transfer.object_store.types import Expected, FarFile, FileFault


class Readable(Protocol):
    """A store's backend, as far as it is read."""

    @property
    def where(self) -> str:
        """The destination, without any secret."""

    def stat(self, name: str) -> FarFile | None:
        """The file, None where there is none."""

    def read(self, name: str, begin: int, end: int | None) -> Iterator[memoryview]:
        """The bytes from `begin` to before `end`; each piece is valid until the next."""


def far_file(backend: Readable, name: str, expected: Expected) -> PiecesSource:
    """A whole file of a store. Raises FileFault where it is not there, or of another size; StoreError."""
    far = backend.stat(name)
    if far is None:
        raise FileFault(f"{name!a} is not in {backend.where}")
    if expected.bytes not in (None, far.bytes):
        raise FileFault(f"{name!a} in {backend.where} has {far.bytes} bytes instead of {expected.bytes}")
    return far_range(backend, name, name, 0, far.bytes, expected.xxh64)


def far_range(backend: Readable, far_name: str, name: str, begin: int, size: int, xxh64: str | None) -> PiecesSource:
    """`size` bytes of a store's file, known as `name`."""
    return PiecesSource(name, size, xxh64, lambda: backend.read(far_name, begin, begin + size))
