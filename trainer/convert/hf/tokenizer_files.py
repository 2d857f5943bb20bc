"""A training's tokenizer as files that transformers' AutoTokenizer loads, and the ids of its special tokens."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trainer.core.files import read_plain
from trainer.data import tokenizer as bpe
from trainer.formats.data.data_notes import Noted, read_notes
from trainer.formats.data.vocabulary_files import tokenizer_identity, tokenizer_path
from trainer.formats.errors import CheckpointError, DataError

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
#: Names of tokens under which vocabularies keep the others, in order of preference.
_BEGIN_NAMES = ("<s>", "<bos>", "<|begin_of_text|>")
_PADDING_NAMES = ("<pad>", "<|pad|>", "[PAD]")
_LARGEST_CONFIG_BYTES = 1 << 24


@dataclass(frozen=True)
class SpecialTokens:
    """Ids that generation needs; None where the vocabulary has no such token."""

    begin: int | None = None
    end: int | None = None
    padding: int | None = None

    def as_config(self) -> dict[str, int | None]:
        """As transformers' configurations call them. Left out there, another vocabulary's would count."""
        return {"bos_token_id": self.begin, "eos_token_id": self.end, "pad_token_id": self.padding}


@dataclass(frozen=True)
class TokenizerFiles:
    """What is to be written, by name, and what the model's configuration says of it."""

    texts: Mapping[str, str]
    special: SpecialTokens


@dataclass(frozen=True)
class _Found:
    tokenizer: Tokenizer
    folder: Path  # that it lies in
    text: str  # as tokenizer.json


def tokenizer_files(
    options: Mapping[str, Any], trained_with: str | None, tokens: int, sequence_length: int, given: Path | None = None
) -> TokenizerFiles | None:
    """The files for the tokenizer `given`, else for the one that the training's options or its data's notes name.

    trained_with: what `tokenizer_identity` said at the save. tokens: of the model's vocabulary. None where a training
    knew only how many tokens there are. Raises CheckpointError for one that cannot be read any more, is not what it
    was, or has more tokens than the model.
    """
    noted = _noted(options)
    try:
        if given is None and trained_with is not None and tokenizer_identity(options) != trained_with:
            raise DataError("the tokenizer of the options is another than was trained with: its files have changed")
        found = _load(options, noted, given)
    except (DataError, OSError) as error:
        raise CheckpointError(f"{error}; give --tokenizer, or --no-tokenizer to go without") from None
    if found is None:
        return None
    size = bpe.vocab_size(found.tokenizer)
    if size > tokens:
        raise CheckpointError(f"the tokenizer has {size:,} tokens, the model {tokens:,}: give --tokenizer with its own")
    names = _names(found.tokenizer, _known_config(found.folder), noted)
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": sequence_length,
        "clean_up_tokenization_spaces": False,
        **names,
    }
    ids = {name: found.tokenizer.token_to_id(text) for name, text in names.items()}
    return TokenizerFiles(
        {TOKENIZER: found.text, TOKENIZER_CONFIG: json.dumps(described, indent=2, ensure_ascii=False) + "\n"},
        SpecialTokens(ids.get("bos_token"), ids.get("eos_token"), ids.get("pad_token")),
    )


def _load(options: Mapping[str, Any], noted: Noted | None, given: Path | None) -> _Found | None:
    """The tokenizer. Raises DataError and OSError."""
    name = options.get("tokenizer_name_or_path")
    if given is None and options.get("vocab_file"):
        vocab, merges = Path(options["vocab_file"]), Path(options["merge_file"])
        try:
            tokenizer = bpe.load_vocab_and_merges(vocab, merges)
        except Exception as error:  # tokenizers raises bare Exception
            raise DataError(f"{vocab} with {merges} cannot be read: {str(error).splitlines()[0]}") from None
        return _Found(tokenizer, vocab.parent, tokenizer.to_str(pretty=True))
    if given is not None:
        return _read(given)
    if name:
        return _read(tokenizer_path(str(name)))
    if noted is None or noted.tokenizer == "unknown":
        return None
    found = _read(Path(noted.tokenizer))
    text = found.tokenizer.to_str(pretty=True)
    if noted.tokenizer_sha256 not in (None, hashlib.sha256(text.encode()).hexdigest()):
        raise DataError(f"{noted.tokenizer} is another tokenizer than the data were made with")
    return found


def _read(path: Path) -> _Found:
    """The tokenizer at a file or in a folder; a tokenizer.json as it is, so that its contents are known again."""
    tokenizer, file = bpe.load(path), path / TOKENIZER if path.is_dir() else path
    text = file.read_text(encoding="utf-8") if file.is_file() else tokenizer.to_str(pretty=True)
    return _Found(tokenizer, file.parent, text)


def _noted(options: Mapping[str, Any]) -> Noted | None:
    """What is noted beside the first of the training's data that has notes; they may lie elsewhere by now."""
    for prefix in map(str, options.get("data_path") or ()):
        with contextlib.suppress(DataError):
            if noted := read_notes(prefix):
                return noted
    return None


def _known_config(folder: Path) -> dict[str, Any]:
    """The tokenizer's own configuration, where it has one that can be read."""
    try:
        value = json.loads(read_plain(folder / TOKENIZER_CONFIG, _LARGEST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _names(tokenizer: Tokenizer, known: Mapping[str, Any], noted: Noted | None) -> dict[str, str]:
    """Special tokens by their name in a configuration. The end is what ended the documents of the training."""
    names = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = known.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and tokenizer.token_to_id(text) is not None:
            names[name] = text
    end = noted.eod if noted is not None else None
    if end is None and "eos_token" not in names:
        with contextlib.suppress(DataError):
            end = bpe.end_of_document(tokenizer)
    if end is not None and (text := tokenizer.id_to_token(end)):
        names["eos_token"] = text
    # GPT-2's vocabulary has one token for both ends.
    both = [bpe.END_OF_DOCUMENT] if names.get("eos_token") == bpe.END_OF_DOCUMENT else []
    for name, candidates in (("bos_token", [*_BEGIN_NAMES, *both]), ("pad_token", _PADDING_NAMES)):
        there = (text for text in candidates if tokenizer.token_to_id(text) is not None)
        if name not in names and (text := next(there, None)):
            names[name] = text
    return names
