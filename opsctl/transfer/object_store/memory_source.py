"""What is said in memory as a source: notes, indexes, a manifest that is made on the way."""

from __future__ import annotations

from opsctl.transfer.object_store.sources import new_digest


class Said:
    """Some bytes under a name."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self._data = name, data
        self.bytes = len(data)
        digest = new_digest()
        digest.update(data)
        self.xxh64: str | None = str(digest.hexdigest())
        self.changed_ns: int | None = None
        self.rewind()

    def rewind(self) -> None:
        """Begin again."""
        self._at = 0

    def read_into(self, view: memoryview) -> int:
        """The next bytes, as many as there is room for."""
        piece = self._data[self._at : self._at + len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def finish(self) -> str:
        """The checksum."""
        return self.xxh64 or ""

    def close(self) -> None:
        """Nothing is held."""
