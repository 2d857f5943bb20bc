"""The record of a check of every byte of a checkpoint: `verified.json` in the checkpoint's folder.

The record names the manifest that the files were compared with. It is not about another save that has the folder's
name later.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainer.core.files import read_plain
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment
from trainer.formats.tolerant import decode

VERIFIED = "verified.json"
_LARGEST_RECORD_BYTES = 1 << 20


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The newest check of a checkpoint's bytes."""

    schema_version: int = 1
    manifest_xxh64: str  # `digest_of` the manifest that the files were compared with
    at: Moment | None = None
    by: str = ""  # user@host
    problems: tuple[str, ...] = ()  # one clause for each damaged file; empty where every byte is as it was written


def digest_of(manifest: bytes) -> str:
    """Return the xxh64 of a manifest. It differs between two saves, because a manifest has every file's checksum."""
    import xxhash

    return str(xxhash.xxh64(manifest).hexdigest())


def read_verification(folder: Path) -> Verification | None:
    """Return the record in a checkpoint's folder; None where there is none. Raises CheckpointError."""
    path = folder / VERIFIED
    try:
        return decode(read_plain(path, _LARGEST_RECORD_BYTES), Verification)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
