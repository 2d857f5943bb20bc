"""The header of a `.idx` file: writing, reading, and checking it against its `.bin`.

It uses only the standard library and the ends of both files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trainer.formats.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
#: Little endian: magic, version, dtype code, sequences, document entries.
_HEAD = struct.Struct(f"<{len(MAGIC)}sQBQQ")
HEADER_BYTES = _HEAD.size
#: dtype code -> the name and bytes of a token id. Megatron's 6 and 7 are floats, which are no token ids.
TOKEN_TYPES: dict[int, tuple[str, int]] = {
    1: ("uint8", 1),
    2: ("int8", 1),
    3: ("int16", 2),
    4: ("int32", 4),
    5: ("int64", 8),
    8: ("uint16", 2),
}


@dataclass(frozen=True)
class Header:
    """The header of PREFIX.idx, checked against the sizes of both files."""

    prefix: str
    type_name: str
    token_bytes: int
    sequences: int
    document_entries: int
    tokens: int

    @property
    def lengths_at(self) -> int:
        """The position of the first of `sequences` int32 lengths."""
        return HEADER_BYTES

    @property
    def pointers_at(self) -> int:
        """The position of the first of `sequences` int64 offsets."""
        return HEADER_BYTES + 4 * self.sequences

    @property
    def documents_at(self) -> int:
        """The position of the first of `document_entries` int64 sequence numbers."""
        return HEADER_BYTES + 12 * self.sequences


def bin_path(prefix: str | Path) -> Path:
    """Return `PREFIX.bin`. A dot inside the prefix stays."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """Return `PREFIX.idx`."""
    return Path(f"{prefix}.idx")


def type_code(type_name: str) -> int:
    """Return the index's code for a type of TOKEN_TYPES."""
    return next(code for code, (name, _) in TOKEN_TYPES.items() if name == type_name)


def header_bytes(type_name: str, sequences: int, document_entries: int) -> bytes:
    """Return the header of an index. `type_name` is one of TOKEN_TYPES."""
    return _HEAD.pack(MAGIC, VERSION, type_code(type_name), sequences, document_entries)


def read_header(prefix: str | Path) -> Header:
    """Read the header of a pair. Raises DataError if a file is missing, foreign, truncated or does not match."""
    index, data = idx_path(prefix), bin_path(prefix)
    for path, other in ((index, data), (data, index)):
        if not path.is_file():
            raise DataError(_missing(str(prefix), path, other))
    try:
        with index.open("rb") as file:
            return _read(str(prefix), file, index.stat().st_size, data.stat().st_size)
    except OSError as error:
        raise DataError(f"cannot read {index}: {error.strerror}") from None


def corrupt(prefix: str | Path, what: str) -> DataError:
    """Return the error for an index with impossible values."""
    way_out = "copy it again or prepare the data again (opsctl data prepare)"
    return DataError(f"{idx_path(prefix)} is no usable index: {what}; {way_out}")


def _read(prefix: str, file: BinaryIO, index_bytes: int, data_bytes: int) -> Header:
    head = file.read(HEADER_BYTES)
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        raise corrupt(prefix, f"it begins with {head[: len(MAGIC)]!r}, not {MAGIC!r}")
    if len(head) < HEADER_BYTES:
        raise corrupt(prefix, f"{index_bytes} bytes, but the header alone has {HEADER_BYTES}")
    _, version, code, sequences, entries = _HEAD.unpack(head)
    if version != VERSION:
        raise corrupt(prefix, f"version {version}, only {VERSION} is supported")
    if code not in TOKEN_TYPES:
        raise corrupt(prefix, f"dtype code {code}; token ids are {', '.join(str(code) for code in TOKEN_TYPES)}")
    needed = HEADER_BYTES + 12 * sequences + 8 * entries
    # Multimodal data has one more byte per sequence, its mode.
    if index_bytes not in (needed, needed + sequences):
        counts = f"{sequences:,} sequences and {entries:,} document entries"
        raise corrupt(prefix, f"{index_bytes:,} bytes, but {counts} take {needed:,}")
    name, token_bytes = TOKEN_TYPES[code]
    end = _end_of_data(file, sequences, token_bytes)
    if data_bytes != end:
        found = f"{bin_path(prefix)} has {data_bytes:,} bytes, but its index {idx_path(prefix).name} ends at {end:,}"
        way_out = "copy both again or prepare them again (opsctl data prepare)"
        raise DataError(f"{found}: one of the two is truncated or from another preparation; {way_out}")
    return Header(prefix, name, token_bytes, sequences, entries, data_bytes // token_bytes)


def _end_of_data(file: BinaryIO, sequences: int, token_bytes: int) -> int:
    """Return the position after the last sequence."""
    if not sequences:
        return 0
    file.seek(HEADER_BYTES + 4 * (sequences - 1))
    (length,) = struct.unpack("<i", file.read(4))
    file.seek(HEADER_BYTES + 4 * sequences + 8 * (sequences - 1))
    (pointer,) = struct.unpack("<q", file.read(8))
    return int(pointer) + int(length) * token_bytes


def _missing(prefix: str, path: Path, other: Path) -> str:
    if other.is_file():
        return f"{path} is missing although {other.name} exists; copy the whole pair or prepare the data again"
    folder = path.parent
    near = sorted(found.stem for found in folder.glob("*.idx"))[:3] if folder.is_dir() else []
    hint = f" ({folder} has {', '.join(near)})" if near else ""
    way_out = "give the prefix of a pair, or make one with opsctl data prepare"
    return f"no data at {prefix}: neither .bin nor .idx exists{hint}; {way_out}"
