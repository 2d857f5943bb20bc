"""`PREFIX.json` beside `.bin` and `.idx`: what `opsctl data prepare` found out about the data as it wrote them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainer.files import write_atomically
from trainer.formats import tolerant
from trainer.formats.errors import DataError
from trainer.formats.json_text import json_file_text

SCHEMA_VERSION = 1


class SkippedCounts(msgspec.Struct, frozen=True):
    """Documents that were left out."""

    empty: int
    not_text: int
    unreadable: int


class DataNotes(msgspec.Struct, frozen=True, kw_only=True):
    """All that is noted."""

    schema_version: int = SCHEMA_VERSION
    documents: int
    tokens: int
    text_bytes: int
    bytes_per_token: float
    vocab_size: int  # before padding
    entropy_nats: float  # of single tokens: the loss of the best model that ignores context
    ln_vocab_nats: float
    eod: int | None  # the token that ends each document; None without one
    dtype: str  # of the stored tokens
    engine: str  # what encoded them
    tokenizer: str  # path of the tokenizer.json
    tokenizer_sha256: str
    bin_sha256: str
    skipped: SkippedCounts


class Noted(msgspec.Struct, frozen=True):
    """What a training asks of the notes. None: they, which anybody may have written, do not say."""

    vocab_size: int | None = None
    eod: int | None = None
    tokenizer: str = "unknown"


def notes_path(prefix: str | Path) -> Path:
    """`PREFIX.json`; a dot inside the prefix stays."""
    return Path(f"{prefix}.json")


def write_notes(prefix: str | Path, notes: DataNotes) -> None:
    """Put the notes in their place. Raises OSError."""
    write_atomically(notes_path(prefix), json_file_text(notes))


def read_notes(prefix: str | Path) -> Noted | None:
    """What is noted beside the data, None where nothing is. Raises DataError when it cannot be read or is no object."""
    path = notes_path(prefix)
    if not path.is_file():
        return None
    try:
        value = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    noted = tolerant.convert(value, Noted)
    if noted is None:
        raise DataError(f"{path} holds {type(value).__name__} instead of an object")
    return noted
