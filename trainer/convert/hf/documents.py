"""The files of a published model besides the weights: configurations, tokenizer, index, model card."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trainer.convert.hf.saved_model import SavedModel
from trainer.convert.hf.tensor_file import CONFIG, INDEX, TensorFile, index_of
from trainer.core.files import read_plain
from trainer.data import tokenizer as bpe
from trainer.formats.checkpoint.manifest import Manifest, tag_of
from trainer.formats.data.vocabulary_files import Noted, read_notes, tokenizer_identity
from trainer.formats.errors import CheckpointError, DataError
from trainer.formats.json_text import json_file_text

TOKENIZER = "tokenizer.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_LARGEST_CONFIG_BYTES = 1 << 24
#: Names of the other special tokens in vocabularies, in order of preference.
_BEGIN_NAMES = ("<s>", "<bos>", "<|begin_of_text|>")
_PADDING_NAMES = ("<pad>", "<|pad|>", "[PAD]")
_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
---

# {name}

| | |
|---|---|
{rows}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```
"""


@dataclass(frozen=True)
class About:
    """Choices of the user: the model's name, and the tokenizer's path."""

    name: str | None = None  # None: the checkpoint's
    tokenizer: Path | None = None  # None: the training's
    with_tokenizer: bool = True


@dataclass(frozen=True)
class Documents:
    """The texts by file name."""

    texts: dict[str, str]
    has_tokenizer: bool

    @property
    def bytes(self) -> int:
        """The size of all of them."""
        return sum(len(text.encode()) for text in self.texts.values())


def documents(model: SavedModel, manifest: Manifest, files: Sequence[TensorFile], about: About) -> Documents:
    """Return the documents for the model in `files`. Raises CheckpointError for another model's tokenizer."""
    length = model.options["seq_length"]
    found = None
    if about.with_tokenizer:
        trained_with = manifest.training.get("tokenizer")
        found = tokenizer_files(model.options, trained_with, model.shape.tokens, length, about.tokenizer)
    # A missing key would mean another vocabulary's default.
    special = found.special if found else dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = {
        "architectures": [model.family.architecture],
        "model_type": model.family.name,
        "torch_dtype": model.dtype,
        "tie_word_embeddings": True,
        "use_cache": True,
        **model.family.config(model.shape, length),
        **special,
    }
    texts = {
        CONFIG: json_file_text(config),
        "generation_config.json": json_file_text({"_from_model_config": True, **special}),
        "README.md": card(about.name or tag_of(manifest.iteration), model, manifest),
        **(found.texts if found else {}),
    }
    if len(files) > 1:
        texts[INDEX] = json_file_text(index_of(files))
    return Documents(texts, found is not None)


def card(name: str, model: SavedModel, manifest: Manifest) -> str:
    """Return the page of the model named `name`, in Markdown."""
    shape, layout = model.shape, manifest.layout
    shared = f", {shape.groups} of keys and values" if shape.groups < shape.heads else ""
    width = f" of {shape.head_size}" if shape.kv_channels else ""
    size = f"{shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads{width}{shared}"
    rows = {
        "architecture": f"{model.family.architecture}, {size}",
        "parameters": f"{sum(entry.size for entry in model.entries):,}",
        "vocabulary": f"{shape.tokens:,} tokens",
        "sequence length": f"{model.options['seq_length']:,} tokens",
        "weights": model.dtype,
        "iteration": f"{manifest.iteration:,}",
        "samples": f"{manifest.consumed_train_samples:,}",
        "tokens": f"{manifest.consumed_train_tokens:,}",
        "loss of the last step": "unknown" if manifest.loss is None else f"{manifest.loss:.4f}",
        "trained in": manifest.precision,
        "trained as": f"TP {layout.get('tensor')} x PP {layout.get('pipeline')} x DP {layout.get('data')}",
    }
    # Without the characters of a name that have a meaning in Markdown or a terminal.
    plain = re.sub(r"[^\w .,:+-]", "_", name).strip() or "model"
    return _CARD.format(name=plain, rows="\n".join(f"| {what} | {value} |" for what, value in rows.items()))


@dataclass(frozen=True)
class TokenizerFiles:
    """The files to write, by name, and the ids of special tokens, as in transformers' configurations."""

    texts: Mapping[str, str]
    special: Mapping[str, int | None]


def tokenizer_files(
    options: Mapping[str, Any], trained_with: str | None, tokens: int, sequence_length: int, given: Path | None = None
) -> TokenizerFiles | None:
    """Return the files for the tokenizer `given`, or for the one in the training's options or its data's notes.

    trained_with: the result of `tokenizer_identity` at the save. tokens: of the model's vocabulary. None if the
    training knew only the number of tokens. Raises CheckpointError for a tokenizer that cannot be read, has changed,
    or has more tokens than the model.
    """
    noted = _noted(options)
    try:
        if given is None and trained_with is not None and tokenizer_identity(options) != trained_with:
            raise DataError("the options' tokenizer is not the training's: its files have changed")
        found = _load(options, noted, given)
    except (DataError, OSError) as error:
        raise CheckpointError(f"{error}; give --tokenizer, or --no-tokenizer to omit it") from None
    if found is None:
        return None
    tokenizer, text, folder = found
    size = bpe.vocab_size(tokenizer)
    if size > tokens:
        raise CheckpointError(
            f"the tokenizer has {size:,} tokens, the model {tokens:,}: give the model's own with --tokenizer"
        )
    names = _names(tokenizer, _known_config(folder), noted)
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": sequence_length,
        "clean_up_tokenization_spaces": False,
        **names,
    }
    special = {
        f"{name}_id": tokenizer.token_to_id(names[name]) if name in names else None
        for name in ("bos_token", "eos_token", "pad_token")
    }
    config = json.dumps(described, indent=2, ensure_ascii=False) + "\n"
    return TokenizerFiles({TOKENIZER: text, _TOKENIZER_CONFIG: config}, special)


def _load(options: Mapping[str, Any], noted: Noted | None, given: Path | None) -> tuple[Tokenizer, str, Path] | None:
    """Return the tokenizer, its tokenizer.json and its folder. Raises DataError and OSError."""
    if given is not None:
        tokenizer, path = bpe.load(given), given
    elif named := bpe.named_by(options):
        tokenizer, path = named
    elif noted is None or noted.tokenizer == "unknown":
        return None
    else:
        tokenizer, path = bpe.noted_by(noted), Path(noted.tokenizer)
    file = path / TOKENIZER if path.is_dir() else path
    # A tokenizer.json is not changed, so that its contents stay comparable.
    is_json = file.is_file() and str(file) != options.get("vocab_file")
    return tokenizer, file.read_text(encoding="utf-8") if is_json else tokenizer.to_str(pretty=True), file.parent


def _noted(options: Mapping[str, Any]) -> Noted | None:
    """Return the first notes next to the training's data. The data may have moved."""
    for prefix in map(str, options.get("data_path") or ()):
        with contextlib.suppress(DataError):
            if noted := read_notes(prefix):
                return noted
    return None


def _known_config(folder: Path) -> dict[str, Any]:
    """Return the tokenizer's own configuration, if it has a readable one."""
    try:
        value = json.loads(read_plain(folder / _TOKENIZER_CONFIG, _LARGEST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _names(tokenizer: Tokenizer, known: Mapping[str, Any], noted: Noted | None) -> dict[str, str]:
    """Return special tokens by their name in a configuration. The end is the one of the training's documents."""
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
