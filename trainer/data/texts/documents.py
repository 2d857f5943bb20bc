"""A folder with one document per file, in the order of the bytes of their relative paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from trainer.data.texts.piece import PIECE_BYTES, FileFacts, Skipped, shown

#: Reading a file costs as much as some text does, however small it is.
_BYTES_A_FILE = 4096


class FilesOfFolder(msgspec.Struct, frozen=True, tag=True):
    """Files of a folder, by their relative paths."""

    root: bytes
    names: list[bytes]

    def texts(self, skipped: Skipped) -> list[str]:
        """See `piece.Readable`.

        Files that are not UTF-8 text (or hold NUL bytes), empty or unreadable ones are left out.
        """
        found = []
        for name in self.names:
            try:
                with open(os.path.join(self.root, name), "rb") as file:  # noqa: PTH118, PTH123
                    text = file.read().decode("utf-8-sig")
            except OSError:
                skipped.note("unreadable", shown(name))
                continue
            except UnicodeDecodeError:
                skipped.note("not_text", shown(name))
                continue
            if "\0" in text:
                skipped.note("not_text", shown(name))
            elif not text:
                skipped.empty += 1
            else:
                found.append(text)
        return found


@dataclass(frozen=True)
class Documents:
    """The folder `path`, whose `files` are the documents. Their paths are relative to it."""

    path: str
    files: tuple[FileFacts, ...]

    @property
    def total_bytes(self) -> int:
        """What is to be read."""
        return sum(file.size_bytes for file in self.files)

    def pieces(self) -> Iterator[tuple[FilesOfFolder, int]]:
        """(piece, bytes read at its end)."""
        names: list[bytes] = []
        read = weight = 0
        for number, file in enumerate(self.files, 1):
            names.append(os.fsencode(file.path))
            read += file.size_bytes
            weight += file.size_bytes + _BYTES_A_FILE
            if weight >= PIECE_BYTES or number == len(self.files):
                yield FilesOfFolder(os.fsencode(self.path), names), read
                names, weight = [], 0
