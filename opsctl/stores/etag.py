"""What S3 calls an object's ETag: the MD5 of its bytes, or of its parts' MD5s; by it the server says what it has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.stores.sources import Source

_LEAST_PART_BYTES = 8 << 20
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


def etag_of(source: Source) -> tuple[str, str]:
    """(the ETag that the source would get, its xxh64); it is read for that. Raises FileFault."""
    size = part_bytes(source.bytes)
    view = memoryview(bytearray(min(size, max(1, source.bytes))))
    parts = []
    while count := source.read_into(view):
        parts.append(md5(view[:count]))
    return (
        md5(b"").hex() if not parts else parts[0].hex() if source.bytes <= size else whole_etag(parts)
    ), source.finish()


def is_of_contents(answer: Mapping[str, Any]) -> bool:
    """Whether the ETag in an answer is of the contents: of what is encrypted with a key of its own it is not."""
    return not answer.get("SSECustomerAlgorithm") and not answer.get("ServerSideEncryption", "").startswith("aws:kms")
