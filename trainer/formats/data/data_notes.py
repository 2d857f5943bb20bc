"""`PREFIX.json` beside `.bin` and `.idx`: what `opsctl data prepare` found out about the data as it wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from trainer.core.files import write_atomically
from trainer.formats import tolerant
from trainer.formats.errors import DataError
from trainer.formats.json_text import json_file_text

SCHEMA_VERSION = 1


class SkippedCounts(msgspec.Struct, frozen=True):
    """Documents that were left out."""

    empty: Annotated[int, Meta(description="Files and lines without text.")]
    not_text: Annotated[int, Meta(description="Files that are not UTF-8 text.")]
    unreadable: Annotated[int, Meta(description="Files that could not be read.")]


class DataFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about the data."""

    documents: Annotated[int, Meta(description="Documents written.")]
    tokens: Annotated[int, Meta(description="Tokens written, the ends of documents among them.")]
    text_bytes: Annotated[int, Meta(description="Bytes of the text, in UTF-8.")]
    bytes_per_token: Annotated[float, Meta(description="Bytes of text for each token.")]
    vocab_size: Annotated[int, Meta(description="Tokens of the vocabulary, before padding.")]
    entropy_nats: Annotated[float, Meta(description="Loss of the best model that ignores context, in nats a token.")]
    ln_vocab_nats: Annotated[float, Meta(description="Loss of a model that knows nothing, in nats a token.")]
    eod: Annotated[int | None, Meta(description="The token that ends each document; null without one.")]
    dtype: Annotated[str, Meta(description="Type of the stored tokens.")]
    engine: Annotated[str, Meta(description="What encoded them.")]
    tokenizer: Annotated[str, Meta(description="Absolute path of the tokenizer's file.")]
    tokenizer_sha256: Annotated[str, Meta(description="SHA-256 of that file, in hexadecimal.")]
    bin_sha256: Annotated[str, Meta(description="SHA-256 of the tokens' file, in hexadecimal.")]
    skipped: Annotated[SkippedCounts, Meta(description="Documents that were left out.")]


class DataNotes(DataFacts, frozen=True, kw_only=True):
    """All that is noted."""

    schema_version: int = SCHEMA_VERSION


class PreparedData(DataFacts, frozen=True, kw_only=True):
    """Data that was written, as `opsctl data prepare --json` prints it."""

    data_path: Annotated[str, Meta(description="The files' prefix, as a run file's `data_path` takes it.")]


class Noted(msgspec.Struct, frozen=True):
    """What readers ask of the notes. None: they, which anybody may have written, do not say."""

    vocab_size: int | None = None
    eod: int | None = None
    tokenizer: str = "unknown"
    entropy_nats: float | None = None
    tokenizer_sha256: str | None = None


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
