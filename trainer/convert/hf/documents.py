"""All of a published model's folder that is no weights: configurations, tokenizer, index, card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.convert.hf.card import CARD, card
from trainer.convert.hf.published import CONFIG
from trainer.convert.hf.saved_model import SavedModel
from trainer.convert.hf.tensor_file import INDEX, TensorFile, index_of
from trainer.convert.hf.tokenizer_files import SpecialTokens, tokenizer_files
from trainer.formats.checkpoint.manifest import Manifest, tag_of
from trainer.formats.json_text import json_file_text

GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True)
class About:
    """What a person may say of the folder: the model's name, and where the tokenizer is."""

    name: str | None = None  # None: the checkpoint's
    tokenizer: Path | None = None  # None: the one of the training
    with_tokenizer: bool = True


@dataclass(frozen=True)
class Documents:
    """The texts by name."""

    texts: dict[str, str]
    has_tokenizer: bool

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(len(text.encode()) for text in self.texts.values())


def documents(model: SavedModel, manifest: Manifest, files: Sequence[TensorFile], about: About) -> Documents:
    """Those that go with the model in `files`. Raises CheckpointError for a tokenizer that is not the model's."""
    length = model.options["seq_length"]
    found = None
    if about.with_tokenizer:
        trained_with = manifest.training.get("tokenizer")
        found = tokenizer_files(model.options, trained_with, model.shape.tokens, length, about.tokenizer)
    special = (found.special if found else SpecialTokens()).as_config()
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
        GENERATION_CONFIG: json_file_text({"_from_model_config": True, **special}),
        CARD: card(about.name or tag_of(manifest.iteration), model, manifest, found is not None),
        **(found.texts if found else {}),
    }
    if len(files) > 1:
        texts[INDEX] = json_file_text(index_of(files))
    return Documents(texts, found is not None)
