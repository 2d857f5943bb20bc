"""The vocabulary and the tokenizer of a training, from files alone, and the notes next to prepared data."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from trainer.core.files import write_atomically
from trainer.formats import tolerant
from trainer.formats.data.data_sources import prefixes
from trainer.formats.errors import DataError
from trainer.formats.json_text import json_file_text


def vocab_size(options: Mapping[str, Any]) -> int:
    """Return the number of tokens before padding.

    It comes from --vocab-size, the tokenizer's files, or the notes of `opsctl data prepare`.
    """
    if options.get("vocab_size"):
        size = int(options["vocab_size"])
        _refuse_larger_tokenizer(options, size)
    elif options.get("tokenizer_name_or_path"):
        size = _tokenizer_vocab_size(str(options["tokenizer_name_or_path"]))
    elif options.get("vocab_file"):
        size = _largest_id(_json(Path(options["vocab_file"]))) + 1
    else:
        noted = [notes.vocab_size for _, notes in _notes(options) if notes.vocab_size is not None]
        if not noted:
            raise DataError("the vocabulary is unknown: give --tokenizer-name-or-path, --vocab-file or --vocab-size")
        return max(noted)
    for prefix, notes in _notes(options):
        if notes.vocab_size is not None and notes.vocab_size > size:
            raise DataError(
                f"{prefix} was made with a vocabulary of {notes.vocab_size:,} tokens, "
                f"the given vocabulary has {size:,}; use the one that it was made with ({notes.tokenizer})"
            )
    return size


def _refuse_larger_tokenizer(options: Mapping[str, Any], size: int) -> None:
    """Raise DataError if the named tokenizer has more tokens than --vocab-size.

    A tokenizer that is not found on this machine is not checked.
    """
    tokens = None
    with suppress(DataError):
        if options.get("tokenizer_name_or_path"):
            tokens = _tokenizer_vocab_size(str(options["tokenizer_name_or_path"]))
        elif options.get("vocab_file"):
            tokens = _largest_id(_json(Path(options["vocab_file"]))) + 1
    if tokens is not None and tokens > size:
        raise DataError(
            f"the tokenizer has {tokens:,} tokens, more than --vocab-size {size:,}: give that, or remove the option"
        )


def tokenizer_identity(options: Mapping[str, Any]) -> str | None:
    """Return 16 hexadecimal digits that identify the tokenizer's contents; None if no option names its files.

    A moved, renamed or reformatted tokenizer keeps its identity. Raises DataError if the files cannot be read.
    """
    if options.get("tokenizer_name_or_path"):
        path = tokenizer_path(str(options["tokenizer_name_or_path"]))
        file = path / "tokenizer.json" if path.is_dir() else path
        if file.is_file():
            return _digest(_json(file))
        vocabulary, merges = path / "vocab.json", path / "merges.txt"
    elif options.get("vocab_file") and options.get("merge_file"):
        vocabulary, merges = Path(options["vocab_file"]), Path(options["merge_file"])
    else:
        return None
    try:
        lines = merges.read_text().splitlines()
    except OSError as error:
        raise DataError(f"cannot read {merges}: {error.strerror}") from None
    return _digest({"vocab": _json(vocabulary), "merges": [line for line in lines if not line.startswith("#version")]})


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _notes(options: Mapping[str, Any]) -> list[tuple[str, Noted]]:
    """Return (prefix, notes) for each prefix in the options that has notes."""
    named = dict.fromkeys(prefix for _, prefix in prefixes(options))
    return [(prefix, noted) for prefix in named if (noted := read_notes(prefix))]


def tokenizer_path(name: str) -> Path:
    """Return the file or folder of --tokenizer-name-or-path. Raises DataError if there is none."""
    path = Path(name)
    return path if path.exists() else _cached_folder(name)


def _tokenizer_vocab_size(name: str) -> int:
    path = tokenizer_path(name)
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.is_file():
        spec = _json(file)
        vocab = spec.get("model", {}).get("vocab")
        added = spec.get("added_tokens", [])
        try:
            # Unigram models list their tokens in the order of their ids.
            largest = _largest_id(vocab) if isinstance(vocab, dict) else len(vocab) - 1
            ids: list[int] = [largest, *(token["id"] for token in added)]
            return max(ids) + 1
        except (TypeError, KeyError):
            raise DataError(f"{file} is not a tokenizer.json: it has no vocabulary") from None
    if (path / "vocab.json").is_file():
        return _largest_id(_json(path / "vocab.json")) + 1
    raise DataError(f"no tokenizer at {path}: expected tokenizer.json or vocab.json")


def _cached_folder(name: str) -> Path:
    """Return the folder of `name` in the Hugging Face cache. Nothing is downloaded: compute nodes have no internet."""
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    snapshots = hub / f"models--{name.replace('/', '--')}" / "snapshots"
    head = snapshots.parent / "refs" / "main"
    if head.is_file() and (snapshots / head.read_text().strip()).is_dir():
        return snapshots / head.read_text().strip()
    found = sorted(snapshots.iterdir()) if snapshots.is_dir() else []
    if not found:
        raise DataError(
            f"no tokenizer {name!r}: no such file or folder, and the Hugging Face cache {hub} does not hold it; "
            f"download it first (hf download {name}) or give a folder"
        )
    return found[-1]


def _largest_id(vocab: Any) -> int:
    return max(vocab.values()) if isinstance(vocab, dict) and vocab else -1


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} contains {type(value).__name__} instead of an object")
    return value


SCHEMA_VERSION = 1


class SkippedCounts(msgspec.Struct, frozen=True):
    """Documents that were left out."""

    empty: Annotated[int, Meta(description="Files and lines without text.")]
    not_text: Annotated[int, Meta(description="Files that are not UTF-8 text.")]
    unreadable: Annotated[int, Meta(description="Files that could not be read.")]


class DataFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts found in the data."""

    documents: Annotated[int, Meta(description="Documents written.")]
    tokens: Annotated[int, Meta(description="Tokens written, with the ends of documents.")]
    text_bytes: Annotated[int, Meta(description="Bytes of the text, in UTF-8.")]
    bytes_per_token: Annotated[float, Meta(description="Bytes of text for each token.")]
    vocab_size: Annotated[int, Meta(description="Tokens of the vocabulary, before padding.")]
    entropy_nats: Annotated[float, Meta(description="Loss of the best model without context, in nats per token.")]
    ln_vocab_nats: Annotated[float, Meta(description="Loss of a uniform model, in nats per token.")]
    eod: Annotated[int | None, Meta(description="The token that ends each document; null without one.")]
    dtype: Annotated[str, Meta(description="Type of the stored tokens.")]
    engine: Annotated[str, Meta(description="The encoder.")]
    tokenizer: Annotated[str, Meta(description="Absolute path of the tokenizer's file.")]
    tokenizer_sha256: Annotated[str, Meta(description="SHA-256 of that file, in hexadecimal.")]
    bin_sha256: Annotated[str, Meta(description="SHA-256 of the tokens' file, in hexadecimal.")]
    skipped: Annotated[SkippedCounts, Meta(description="Documents that were left out.")]


class DataNotes(DataFacts, frozen=True, kw_only=True):
    """The contents of a notes file."""

    schema_version: int = SCHEMA_VERSION


class PreparedData(DataFacts, frozen=True, kw_only=True):
    """Data that was written, as `opsctl data prepare --json` prints it."""

    data_path: Annotated[str, Meta(description="The files' prefix, as a run file's `data_path` takes it.")]


class Noted(msgspec.Struct, frozen=True):
    """The notes that readers use. None: not noted. Any group member may have edited them."""

    vocab_size: int | None = None
    eod: int | None = None
    tokenizer: str = "unknown"
    entropy_nats: float | None = None
    tokenizer_sha256: str | None = None


def notes_path(prefix: str | Path) -> Path:
    """Return `PREFIX.json`. A dot inside the prefix stays."""
    return Path(f"{prefix}.json")


def write_notes(prefix: str | Path, notes: DataNotes) -> None:
    """Write the notes. Raises OSError."""
    write_atomically(notes_path(prefix), json_file_text(notes))


def read_notes(prefix: str | Path) -> Noted | None:
    """Return the notes of the data; None without any. Raises DataError if they cannot be read or are no object."""
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
        raise DataError(f"{path} contains {type(value).__name__} instead of an object")
    return noted
