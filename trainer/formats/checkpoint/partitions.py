"""How a checkpoint's state is cut into DeepSpeed's files: pure arithmetic on the table of parameters and the layout.

A layer's weights are in one file for each tensor rank. The optimizer's states of one stage and tensor rank are laid end
to end in two flat groups, what decays and what does not, each padded and cut into equal partitions, one for each data
rank, with a file for each data rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainer.formats.checkpoint.manifest import SavedParameter
from trainer.recipe.layout import blocks_per_stage
from trainer.recipe.parameters import EMBEDDING_LAYER, OUTPUT_WEIGHT, is_of_block, shared_shape

#: What DeepSpeed calls the weight that the first stage embeds with and the last one makes logits with.
TIED = "tied_modules.embed."
_SHARED_WEIGHT = "word_embeddings.weight"
#: How the name of a layer's file begins, and that of a rank's optimizer states ends.
_WEIGHTS, _OPTIMIZER = "layer_", "_optim_states.pt"
# A group is padded to a multiple of this for each data rank, which NCCL wants.
_ALIGNMENT = 2


@dataclass(frozen=True)
class Fragment:
    """A run of one parameter's elements in one data rank's partition of a group."""

    data_rank: int
    start: int  # in the partition
    elements: int
    first: int  # which of the parameter's own elements, as its tensor rank has it, comes first


@dataclass(frozen=True)
class FlatGroup:
    """One group of a stage's parameters on one tensor rank, end to end: where each begins, and how it is cut."""

    places: Mapping[str, tuple[int, int]]  # DeepSpeed's name -> (first element, elements)
    data: int

    @classmethod
    def of(cls, sizes: Iterable[tuple[str, int]], data: int) -> FlatGroup:
        """Of parameters of these sizes, in this order."""
        places, end = {}, 0
        for name, size in sizes:
            places[name] = (end, size)
            end += size
        return cls(places, data)

    @cached_property
    def elements(self) -> int:
        """Without padding."""
        return sum(size for _, size in self.places.values())

    @cached_property
    def partition(self) -> int:
        """Elements of one data rank's partition, padding included."""
        return -(-self.elements // (_ALIGNMENT * self.data)) * _ALIGNMENT

    def filled(self, data_rank: int) -> int:
        """Elements of a data rank's partition that are no padding."""
        return max(0, min(self.elements - data_rank * self.partition, self.partition))

    def fragments(self, name: str) -> list[Fragment]:
        """Where the parameter's elements are, in their order."""
        place, size = self.places[name]
        found, first = [], 0
        while first < size:
            data_rank, start = divmod(place + first, self.partition)
            elements = min(self.partition - start, size - first)
            found.append(Fragment(data_rank, start, elements, first))
            first += elements
        return found

    def addresses(self, data_rank: int) -> dict[str, tuple[int, int]]:
        """DeepSpeed's name -> (start, elements) of all that the data rank's partition has."""
        low, high = data_rank * self.partition, (data_rank + 1) * self.partition
        return {
            name: (max(place, low) - low, min(place + size, high) - max(place, low))
            for name, (place, size) in self.places.items()
            if place < high and place + size > low
        }


@dataclass(frozen=True)
class Cut:
    """A layout as far as files go."""

    tensor: int
    pipeline: int
    data: int
    partition_method: str

    @classmethod
    def of(cls, layout: Mapping[str, Any]) -> Cut:
        """Of a manifest's `layout`. Raises ValueError where it is none."""
        try:
            cut = cls(layout["tensor"], layout["pipeline"], layout["data"], layout["partition_method"])
        except KeyError as error:
            raise ValueError(f"its layout does not say {error}") from None
        sizes = (cut.tensor, cut.pipeline, cut.data)
        if not all(isinstance(one, int) and one > 0 for one in sizes) or not isinstance(cut.partition_method, str):
            raise ValueError(f"its layout is none: {dict(layout)}")
        return cut

    def model_rank(self, stage: int, tensor_rank: int) -> int:
        """The number in the names of files with all but weights."""
        return stage * self.tensor + tensor_rank


def weights_file(layer: int, tensor_rank: int) -> str:
    """With one tensor rank's weights of a layer."""
    return f"{_WEIGHTS}{layer:02d}-model_{tensor_rank:02d}-model_states.pt"


def state_file(model_rank: int) -> str:
    """With what a stage and tensor rank has beside weights and optimizer states: counters and random states."""
    return f"mp_rank_{model_rank:02d}_model_states.pt"


def optimizer_file(data_rank: int, model_rank: int, precision: str) -> str:
    """With one data rank's part of a stage and tensor rank's optimizer states."""
    prefix = "bf16_" if precision == "bf16" else ""
    return f"{prefix}zero_pp_rank_{data_rank}_mp_rank_{model_rank:02d}{_OPTIMIZER}"


def is_weights_file(name: str) -> bool:
    """Whether it is called as `weights_file` calls one."""
    return name.startswith(_WEIGHTS)


def is_optimizer_file(name: str) -> bool:
    """Whether it is called as `optimizer_file` calls one."""
    return name.endswith(_OPTIMIZER)


def engine_name(parameter: SavedParameter) -> str:
    """What DeepSpeed calls a parameter in its optimizer's files."""
    return f"{TIED if parameter.layer == EMBEDDING_LAYER else f'{parameter.layer}.'}{parameter.name_in_layer}"


def is_tied(parameters: Iterable[SavedParameter]) -> bool:
    """Whether a model of these parameters makes logits with its word embedding."""
    return all(one.name != OUTPUT_WEIGHT for one in parameters)


def rank_shape(parameter: SavedParameter, tensor: int) -> tuple[int, ...]:
    """Shape of what each of `tensor` ranks has. Raises ValueError when it cannot be shared alike."""
    return shared_shape(parameter.name, parameter.shape, parameter.split_dim, tensor)


def stages(parameters: Iterable[SavedParameter], cut: Cut) -> list[list[SavedParameter]]:
    """Each pipeline stage's parameters, in the stage's order; the last one has the word embedding too where it is tied.

    Raises ValueError when the layers do not divide.
    """
    table = list(parameters)
    blocks = sorted({one.layer for one in table if is_of_block(one.name)})
    dealt = blocks_per_stage(len(blocks), cut.pipeline, cut.partition_method)
    stage_of = dict(zip(blocks, (stage for stage, count in enumerate(dealt) for _ in range(count)), strict=True))
    found: list[list[SavedParameter]] = [[] for _ in range(cut.pipeline)]
    if cut.pipeline > 1 and is_tied(table):
        found[-1] += [one for one in table if one.layer == EMBEDDING_LAYER and one.name_in_layer == _SHARED_WEIGHT]
    for one in table:
        default = 0 if one.layer == EMBEDDING_LAYER else cut.pipeline - 1
        found[stage_of.get(one.layer, default)].append(one)
    return found


def flat_groups(stage: Iterable[SavedParameter], cut: Cut) -> list[FlatGroup]:
    """The groups of a stage's parameters on each of its tensor ranks. Raises ValueError as `rank_shape` does."""
    named = [(engine_name(one), math.prod(rank_shape(one, cut.tensor)), one.decays) for one in stage]
    groups = ([(name, size) for name, size, decays in named if decays == kind] for kind in (True, False))
    return [FlatGroup.of(group, cut.data) for group in groups if group]
