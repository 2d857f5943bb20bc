"""How many tokens the vocabulary has and which tokenizer it is, from the files alone: no tokenizer is built."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.formats.data.data_notes import Noted, read_notes
from trainer.formats.data.data_sources import prefixes
from trainer.formats.errors import DataError


def vocab_size(options: Mapping[str, Any]) -> int:
    """Tokens before padding.

    --vocab-size, else the tokenizer's files, else what `opsctl data prepare` noted beside the data.
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
                f"the vocabulary given has {size:,}; give the one that it was made with ({notes.tokenizer})"
            )
    return size


def _refuse_larger_tokenizer(options: Mapping[str, Any], size: int) -> None:
    """Raise DataError where the tokenizer that is named too has more tokens than --vocab-size says.

    One that is not to be found here is passed over: nothing is asked of it.
    """
    tokens = None
    with suppress(DataError):
        if options.get("tokenizer_name_or_path"):
            tokens = _tokenizer_vocab_size(str(options["tokenizer_name_or_path"]))
        elif options.get("vocab_file"):
            tokens = _largest_id(_json(Path(options["vocab_file"]))) + 1
    if tokens is not None and tokens > size:
        raise DataError(
            f"the tokenizer has {tokens:,} tokens, more than --vocab-size {size:,}: give as many, or leave it out"
        )


def tokenizer_identity(options: Mapping[str, Any]) -> str | None:
    """16 hexadecimal digits that follow from what the tokenizer's files say, None where no option names them.

    Moved, renamed or indented otherwise it is the same. Raises DataError where they cannot be read.
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
    """(prefix, what is noted beside it) of each prefix that options name and that has notes."""
    named = dict.fromkeys(prefix for _, prefix in prefixes(options))
    return [(prefix, noted) for prefix in named if (noted := read_notes(prefix))]


def tokenizer_path(name: str) -> Path:
    """The file or folder that --tokenizer-name-or-path means. Raises DataError where there is none."""
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
            raise DataError(f"{file} is no tokenizer.json: it has no vocabulary") from None
    if (path / "vocab.json").is_file():
        return _largest_id(_json(path / "vocab.json")) + 1
    raise DataError(f"no tokenizer at {path}: expected tokenizer.json or vocab.json")


def _cached_folder(name: str) -> Path:
    """Where the Hugging Face cache keeps `name`. Compute nodes have no internet, so nothing is fetched."""
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
            f"fetch it ahead (hf download {name}) or give a folder"
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
        raise DataError(f"{path} holds {type(value).__name__} instead of an object")
    return value
