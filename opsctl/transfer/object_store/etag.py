"""What S3 calls an object's ETag: the MD5 of its bytes, or of its parts' MD5s; by it the server says what it has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.transfer.object_store.sources import Source

_LEAST_PART_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_MOST_PARTS = 10_000
_MIB = 1 << 20


def part_bytes(size: int) -> int:
    """How large the parts of an object of `size` bytes are, whoever sends it whenever."""
    return max(_LEAST_PART_BYTES, -(-size // (_MOST_PARTS * _MIB)) * _MIB)


def md5(data: bytes | bytearray | memoryview) -> bytes:
    """MD5, against accidents alone."""
    return hashlib.md5(data, usedforsecurity=False).digest()


def whole_etag(parts: Sequence[bytes]) -> str:
    """The ETag of an object that came in parts with these MD5s."""
    return f"{md5(b''.join(parts)).hex()}-{len(parts)}"


def next_md5(source: Source, count: int) -> bytes:
    """The MD5 of the next `count` bytes of a source. Raises FileFault."""
    found = hashlib.md5(usedforsecurity=False)
    view = memoryview(bytearray(min(count, _PIECE_BYTES)))
    while count:
        read = source.read_into(view[:count])
        if not read:
            break
        found.update(view[:read])
        count -= read
    return found.digest()


def etag_of(source: Source, told: str) -> tuple[str, str]:
    """(the ETag that the source would get if it came as what has the ETag `told`, its xxh64). Raises FileFault.

    It is read for that. What came in parts has their number behind a dash.
    """
    if "-" not in told:
        return next_md5(source, source.bytes).hex(), source.finish()
    size, left, parts = part_bytes(source.bytes), source.bytes, []
    while left:
        count = min(size, left)
        parts.append(next_md5(source, count))
        left -= count
    return whole_etag(parts), source.finish()


def is_of_contents(answer: Mapping[str, Any]) -> bool:
    """Whether the ETag in an answer is of the contents: of what is encrypted with a key of its own it is not."""
    return not answer.get("SSECustomerAlgorithm") and not answer.get("ServerSideEncryption", "").startswith("aws:kms")
