"""A saved model as one of a family's, with each of their tensors read from the checkpoint on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.saved_state import SavedState
from trainer.convert.hf.families import Family, Heads, Place, family_of, their_shapes, to_theirs
from trainer.convert.hf.tensor_file import TensorEntry
from trainer.core.dtypes import DTYPES_BY_NAME
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.errors import CheckpointError
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options

#: The manifest's names.
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class _Source:
    """The source of one of their tensors."""

    name: str
    place: Place
    part: tuple[slice, ...] | None


class SavedModel:
    """One checkpoint's model. Raises CheckpointError if it fits no family.

    dtype: as in DTYPES_BY_NAME; None is that of the saved weights. Other types are made from the optimizer's fp32
    weights if they were saved.
    """

    def __init__(self, state: SavedState, manifest: Manifest, dtype: str | None) -> None:
        client_state = state.client_state()
        self.options = saved_options(client_state, manifest)
        self.shape = saved_shape(self.options, client_state, manifest)
        self.family: Family = family_of(self.shape, list(state.parameters))
        self.saved_dtype = PRECISIONS[manifest.precision]
        self.dtype = dtype or self.saved_dtype
        self._state = state
        self._from_optimizer = self.dtype != self.saved_dtype != "float32" and state.has_optimizer
        self._heads = Heads.of(self.shape)
        self._waiting: dict[str, Tensor] = {}  # others from the same parameter, which are requested next
        self._sources: dict[str, _Source] = {}
        entries = []
        for name, parameter in state.parameters.items():
            place = self.family.place_of(name)
            assert place is not None, "a family has a place for every parameter"
            shape, part = tuple(parameter.shape), None
            if parameter.token_rows is not None and self.shape.tokens < shape[0]:
                shape = (self.shape.tokens, *shape[1:])
                part = tuple(slice(0, size) for size in shape)
            theirs = zip(place.names, their_shapes(place, shape, self._heads), strict=True)
            for their_name, their_shape in theirs:
                self._sources[their_name] = _Source(name, place, part)
                entries.append(TensorEntry(their_name, their_shape, DTYPES_BY_NAME[self.dtype]))
        self.entries: tuple[TensorEntry, ...] = tuple(entries)

    @property
    def widened(self) -> bool:
        """True if the tensors have more digits than the saved ones."""
        return self.dtype == "float32" != self.saved_dtype and not self._from_optimizer

    def tensor(self, name: str) -> Tensor:
        """Return one of their tensors. Raises CheckpointError if a value does not fit the type, and OSError."""
        if name in self._waiting:
            return self._waiting.pop(name)
        source = self._sources[name]
        if self._from_optimizer:
            saved = self._state.optimizer(source.name, "fp32", source.part)
        else:
            saved = self._state.weight(source.name, source.part)
        cast = saved.to(DTYPES_BY_NAME[self.dtype])
        if cast.dtype == torch.float16 != saved.dtype and bool((cast.isinf() & saved.isfinite()).any()):
            largest = float(saved[saved.isfinite()].abs().max())
            raise CheckpointError(
                f"{source.name} has values up to {largest:.4g}, float16 ends at 65504: give --dtype bfloat16 or float32"
            )
        self._waiting = dict(zip(source.place.names, to_theirs(source.place, cast, self._heads), strict=True))
        return self._waiting.pop(name)


def saved_options(client_state: Mapping[str, Any], manifest: Manifest) -> Options:
    """Return the options of the training that saved, with the manifest's model.

    Raises CheckpointError for a checkpoint without them.
    """
    arguments = client_state.get("args")
    if not isinstance(arguments, Mapping):
        raise CheckpointError("it has no training options, so its GeLU and epsilon are unknown")
    return Options({**arguments, **{name: value for name, value in manifest.model.items() if name in arguments}})


def saved_shape(options: Options, client_state: Mapping[str, Any], manifest: Manifest) -> ModelShape:
    """Return the model's shape. `options` are `saved_options`."""
    rows = manifest.model["padded_vocab_size"]
    known = client_state.get("checkpoint_info") or {}
    # A manifest of schema 1 has only the padded size.
    tokens = manifest.model.get("vocab_size") or known.get("original_vocab_size") or options["vocab_size"] or rows
    return ModelShape.of(options, Vocabulary(tokens, rows))
