"""A published model as one of the trainer's: which options it is, and every parameter of ours, read when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.saved_state import Part
from trainer.convert.hf.families import family_named
from trainer.convert.hf.family import Family, Heads, Place, their_shapes, to_ours
from trainer.convert.hf.published import PublishedModel
from trainer.convert.hf.saved_model import PRECISIONS
from trainer.convert.hf.tensor_file import TensorEntry
from trainer.convert.hf.tokenizer_files import TOKENIZER
from trainer.core.dtypes import DTYPES_BY_NAME
from trainer.formats.checkpoint.manifest import SavedParameter
from trainer.formats.checkpoint.saved_parameters import saved_parameters
from trainer.formats.errors import CheckpointError
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.option_rules import combination_errors
from trainer.recipe.options import Options, from_tables
from trainer.recipe.vocabulary import Vocabulary

#: Their output layer, where a file has it beside the embedding that it is.
_OUTPUT = "lm_head.weight"


@dataclass(frozen=True)
class Padding:
    """How many rows the word embedding has beyond the tokens', as the trainer's options ask."""

    divisible_by: int
    to: int | None


class ImportedModel:
    """The model in a folder, as the states that a checkpoint is written from: weights alone.

    parameters: ours, as wholes, without padding. Raises CheckpointError for a model that the trainer has not, both
    values named.
    """

    def __init__(self, folder: Path, padding: Padding) -> None:
        self._published = PublishedModel(folder)
        config = self._published.config
        if config.get("quantization_config"):
            raise CheckpointError("config.json: it is quantized, the trainer's weights are fp32, bf16 or fp16")
        self.family: Family = family_named(config.get("model_type"))
        self.given = {**self.family.options(config), **_tokenizer(folder)}
        layers, tensors = self.given["num_layers"], len(self._published.names)
        if layers > tensors:  # a table of 10^18 layers would be made before any is missed
            raise CheckpointError(f"config.json: it has {layers} layers, and its files have {tensors} tensors in all")
        wanted = {"make_vocab_size_divisible_by": padding.divisible_by, "pad_vocab_size_to": padding.to}
        self.options: Options = from_tables({**self.given, **wanted}, 1)
        if wrong := combination_errors(self.options, 1):
            raise CheckpointError(f"the trainer has no such model: {wrong[0]}")
        try:
            vocabulary = Vocabulary.of(self.given["vocab_size"], self.options)
        except ValueError as error:
            raise CheckpointError(str(error)) from None
        self._their_name = {self._with_prefix(name): name for name in self._published.names}
        entries = {self._with_prefix(one.name): one for one in self._published.described()}
        self.precision = self._precision(entries)
        self.options = self.options.replace(bf16=self.precision == "bf16", fp16=self.precision == "fp16")
        self.shape = ModelShape.of(self.options, vocabulary)
        unpadded = replace(self.shape, vocabulary=self.shape.tokens)
        self.parameters: Mapping[str, SavedParameter] = {one.name: one for one in saved_parameters(unpadded)}
        self._refuse_other_tensors(entries)

    def weight(self, name: str, part: Part | None = None) -> Tensor:
        """The part of a parameter of ours (None: the whole), without rows of padding. Raises CheckpointError."""
        place = self._place(name)
        theirs = [self._published.tensor(self._their_name[one]) for one in place.names]
        whole = to_ours(place, theirs, Heads.of(self.shape))
        return whole if part is None else whole[part]

    @property
    def moments(self) -> tuple[str, ...]:
        """What the optimizer has of each parameter: there is none."""
        return ()

    def optimizer(self, name: str, which: str, part: Part | None = None) -> Tensor:
        """Raises CheckpointError: there is none."""
        raise CheckpointError(f"a published model has no {which} of {name}")

    def step(self, name: str) -> float:
        """No step was taken."""
        return 0.0

    def common_state(self) -> dict[str, Any]:
        """What the optimizer says of itself: nothing."""
        return {}

    def refuse_other_output_layer(self) -> None:
        """Raise CheckpointError where the output layer is not the embedding, which the model says it is."""
        output = self._their_name.get(_OUTPUT)
        if output is None or not self.shape.tied:
            return
        (embedding,) = (self._their_name[one] for one in self._place("word_embeddings.weight").names)
        if not torch.equal(self._published.tensor(output), self._published.tensor(embedding)):
            raise CheckpointError(f"{output} differs from {embedding}, the trainer has one for both")

    def _place(self, name: str) -> Place:
        place = self.family.place_of(name)
        assert place is not None, "a family has a place for every parameter of its models"
        return place

    def _with_prefix(self, name: str) -> str:
        return name if name == _OUTPUT or name.startswith(self.family.prefix) else self.family.prefix + name

    def _precision(self, entries: Mapping[str, TensorEntry]) -> str:
        dtypes = {entry.dtype for name, entry in entries.items() if not self._is_left_over(name)}
        names = {dtype: name for name, dtype in DTYPES_BY_NAME.items()}
        found = sorted(names.get(dtype, str(dtype)) for dtype in dtypes)
        precision = next((ours for ours, theirs in PRECISIONS.items() if [theirs] == found), None)
        if precision is None:
            raise CheckpointError(
                f"its weights are of {', '.join(found)}: one of {', '.join(DTYPES_BY_NAME)} for all is needed"
            )
        return precision

    def _is_left_over(self, name: str) -> bool:
        return self.family.leftovers.fullmatch(name) is not None

    def _refuse_other_tensors(self, entries: Mapping[str, TensorEntry]) -> None:
        expected: dict[str, tuple[int, ...]] = {}
        for name, parameter in self.parameters.items():
            place = self._place(name)
            expected |= zip(place.names, their_shapes(place, parameter.shape, Heads.of(self.shape)), strict=True)
        for name, shape in expected.items():
            found = entries[name].shape if name in entries else "missing"
            if found != shape:
                raise CheckpointError(f"{name} is {found}, config.json makes it {shape}")
        unknown = [name for name in entries if name not in {*expected, _OUTPUT} and not self._is_left_over(name)]
        if unknown:
            raise CheckpointError(f"{unknown[0]!a} belongs to nothing that the trainer has ({len(unknown)} do)")


def _tokenizer(folder: Path) -> dict[str, Any]:
    has = (folder / TOKENIZER).is_file() or (folder / "vocab.json").is_file()
    return {"tokenizer_name_or_path": str(folder.absolute())} if has else {}
