"""The place of each parameter in a checkpoint's files: partitions, and parts of tensor ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Annotated, Any, Literal

import msgspec

from trainer.formats.checkpoint.manifest import Manifest, SavedParameter
from trainer.formats.errors import CheckpointError
from trainer.recipe.layout import blocks_per_stage
from trainer.recipe.model_options import GATES
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import EMBEDDING_LAYER, OUTPUT_WEIGHT, is_of_block, parameter_table, shared_shape

#: DeepSpeed's name of the weight that the first stage embeds with and the last one computes logits with.
TIED = "tied_modules.embed."
_SHARED_WEIGHT = "word_embeddings.weight"
#: The prefix of a layer's file name, and the suffix of a rank's optimizer states.
_WEIGHTS, _OPTIMIZER = "layer_", "_optim_states.pt"
# A group is padded to a multiple of this for each data rank, as NCCL needs it.
_ALIGNMENT = 2


@dataclass(frozen=True)
class Fragment:
    """A contiguous range of one parameter's elements in one data rank's partition of a group."""

    data_rank: int
    start: int  # in the partition
    elements: int
    first: int  # the first of the parameter's own elements, on its tensor rank


@dataclass(frozen=True)
class FlatGroup:
    """One group of a stage's parameters on one tensor rank, end to end, with their offsets and partitions."""

    places: Mapping[str, tuple[int, int]]  # DeepSpeed's name -> (first element, elements)
    data: int

    @classmethod
    def of(cls, sizes: Iterable[tuple[str, int]], data: int) -> FlatGroup:
        """Return the group of parameters with these sizes, in this order."""
        places, end = {}, 0
        for name, size in sizes:
            places[name] = (end, size)
            end += size
        return cls(places, data)

    @cached_property
    def elements(self) -> int:
        """The elements without padding."""
        return sum(size for _, size in self.places.values())

    @cached_property
    def partition(self) -> int:
        """The elements of one data rank's partition, with padding."""
        return -(-self.elements // (_ALIGNMENT * self.data)) * _ALIGNMENT

    def filled(self, data_rank: int) -> int:
        """Return the elements of a data rank's partition without padding."""
        return max(0, min(self.elements - data_rank * self.partition, self.partition))

    def fragments(self, name: str) -> list[Fragment]:
        """Return the ranges of the parameter's elements, in order."""
        place, size = self.places[name]
        found, first = [], 0
        while first < size:
            data_rank, start = divmod(place + first, self.partition)
            elements = min(self.partition - start, size - first)
            found.append(Fragment(data_rank, start, elements, first))
            first += elements
        return found

    def addresses(self, data_rank: int) -> dict[str, tuple[int, int]]:
        """Return DeepSpeed's name -> (start, elements) for all parameters in the data rank's partition."""
        low, high = data_rank * self.partition, (data_rank + 1) * self.partition
        return {
            name: (max(place, low) - low, min(place + size, high) - max(place, low))
            for name, (place, size) in self.places.items()
            if place < high and place + size > low
        }


@dataclass(frozen=True)
class Cut:
    """The parts of a layout that decide the files."""

    tensor: int
    pipeline: int
    data: int
    partition_method: str

    @classmethod
    def of(cls, layout: Mapping[str, Any]) -> Cut:
        """Return the cut of a manifest's `layout`. Raises ValueError if it is invalid."""
        try:
            cut = cls(layout["tensor"], layout["pipeline"], layout["data"], layout["partition_method"])
        except KeyError as error:
            raise ValueError(f"its layout lacks {error}") from None
        sizes = (cut.tensor, cut.pipeline, cut.data)
        if not all(isinstance(one, int) and one > 0 for one in sizes) or not isinstance(cut.partition_method, str):
            raise ValueError(f"its layout is invalid: {dict(layout)}")
        return cut

    def model_rank(self, stage: int, tensor_rank: int) -> int:
        """Return the number in the names of all files except weights."""
        return stage * self.tensor + tensor_rank


def weights_file(layer: int, tensor_rank: int) -> str:
    """Return the file name of one tensor rank's weights of a layer."""
    return f"{_WEIGHTS}{layer:02d}-model_{tensor_rank:02d}-model_states.pt"


def state_file(model_rank: int) -> str:
    """Return the file name of the counters and random states of a stage and tensor rank."""
    return f"mp_rank_{model_rank:02d}_model_states.pt"


def optimizer_file(data_rank: int, model_rank: int, precision: str) -> str:
    """Return the file name of one data rank's part of the optimizer states of a stage and tensor rank."""
    prefix = "bf16_" if precision == "bf16" else ""
    return f"{prefix}zero_pp_rank_{data_rank}_mp_rank_{model_rank:02d}{_OPTIMIZER}"


def is_weights_file(name: str) -> bool:
    """Return True if `weights_file` returns such names."""
    return name.startswith(_WEIGHTS)


def is_optimizer_file(name: str) -> bool:
    """Return True if `optimizer_file` returns such names."""
    return name.endswith(_OPTIMIZER)


def engine_name(parameter: SavedParameter) -> str:
    """Return DeepSpeed's name of a parameter in its optimizer's files."""
    return f"{TIED if parameter.layer == EMBEDDING_LAYER else f'{parameter.layer}.'}{parameter.name_in_layer}"


def is_tied(parameters: Iterable[SavedParameter]) -> bool:
    """Return True if a model with these parameters computes logits with its word embedding."""
    return all(one.name != OUTPUT_WEIGHT for one in parameters)


def rank_shape(parameter: SavedParameter, tensor: int) -> tuple[int, ...]:
    """Return the shape of each of `tensor` ranks' part. Raises ValueError if it cannot be split evenly."""
    return shared_shape(parameter.name, parameter.shape, parameter.split_dim, tensor)


def stages(parameters: Iterable[SavedParameter], cut: Cut) -> list[list[SavedParameter]]:
    """Return each pipeline stage's parameters, in order. The last one has a tied word embedding too.

    Raises ValueError if the layers do not divide.
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
    """Return the groups of a stage's parameters on each of its tensor ranks. Raises ValueError as `rank_shape` does."""
    named = [(engine_name(one), math.prod(rank_shape(one, cut.tensor)), one.decays) for one in stage]
    groups = ([(name, size) for name, size, decays in named if decays == kind] for kind in (True, False))
    return [FlatGroup.of(group, cut.data) for group in groups if group]


# An edited manifest with a huge number must not fill the memory.
_Size = Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]


class _Model(msgspec.Struct):
    """The facts of a manifest's `model` that decide its parameters. Those with a default are later additions."""

    num_layers: Annotated[int, msgspec.Meta(gt=0, le=100_000)]
    hidden_size: _Size
    num_attention_heads: _Size
    ffn_hidden_size: _Size
    padded_vocab_size: _Size
    position_embedding_type: Literal["absolute", "alibi", "rope", "yarn"]
    vocab_size: _Size | None = None
    max_position_embeddings: _Size | None = None
    num_query_groups: _Size | None = None
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    glu_activation: str | None = None
    embed_layernorm: bool = False
    disable_bias_linear: bool = False
    add_qkv_bias: bool = False
    untie_embeddings_and_output_weights: bool = False
    qk_layernorm: bool = False
    kv_channels: _Size | None = None


def saved_parameters(shape: ModelShape) -> tuple[SavedParameter, ...]:
    """Return all parameters of the model in its order, for a manifest's `parameters`."""
    return tuple(
        SavedParameter(
            name=one.full_name,
            layer=one.layer,
            name_in_layer=one.name,
            shape=one.shape,
            decays=one.decays,
            split_dim=one.split_dim,
            token_rows=one.token_rows,
        )
        for one in parameter_table(shape)
    )


def parameters_of(manifest: Manifest) -> tuple[SavedParameter, ...]:
    """Return the checkpoint's parameters. For manifests of schema 1 they follow from its model.

    Raises CheckpointError if the model's description is incomplete or impossible, or if the parameters are another
    model's.
    """
    _refuse_no_model(manifest.model)
    try:
        of_model = saved_parameters(ModelShape.of_facts(manifest.model))
    except KeyError as error:
        raise CheckpointError(f"the manifest's model lacks {error}") from None
    for own, known in zip_longest(manifest.parameters or of_model, of_model):
        if own != known:
            name = (own or known).name
            raise CheckpointError(f"the manifest's parameters are not those of its model, the first other is {name!a}")
    return of_model


def _refuse_no_model(facts: Mapping[str, Any]) -> None:
    try:
        model = msgspec.convert(facts, _Model)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"the manifest's model is invalid: {error}") from None
    if model.glu_activation not in (None, *GATES):
        raise CheckpointError(f"the manifest's model is invalid: glu_activation is {model.glu_activation[:40]!a}")
    if model.num_query_groups is not None and model.num_attention_heads % model.num_query_groups:
        groups = model.num_query_groups
        raise CheckpointError(f"the manifest's model has {model.num_attention_heads} heads in {groups} groups")
    if model.vocab_size is not None and model.vocab_size > model.padded_vocab_size:
        raise CheckpointError(f"the manifest's model has {model.vocab_size} tokens in {model.padded_vocab_size} rows")
    if model.position_embedding_type == "absolute" and model.max_position_embeddings is None:
        raise CheckpointError("the manifest's model lacks the number of positions")


#: The text file next to a universal checkpoint that names the one that DeepSpeed loads.
LATEST_UNIVERSAL = "latest_universal"


#: The folder with a folder for each parameter, and the file next to them.
ZERO, COMMON_STATE = "zero", "optimizer_state.pt"


#: Our addition: the manifest of the converted checkpoint, with this one's files.
UNIVERSAL_MANIFEST = "universal.json"


#: Facts about the parameters in every checkpoint, so that DeepSpeed's programs can merge them.
INFO = "universal_checkpoint_info"


#: Keys in a parameter's files: the tensor, the dimension along which it is split, and that padding is removed.
PARAM, CAT_DIM, VOCABULARY_TENSOR = "param", "cat_dim", "vocab_tensor"


#: The file with the optimizer's step count.
STEP = "step"


_VERSION = 0.4


def universal_checkpoint_info(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patterns by which DeepSpeed's programs merge the parameters of a manifest's `model`.

    Each value is a list of regular expressions. Each matches some parameter, and no parameter matches two of one list.
    Parameters that all tensor-parallel ranks hold must be equal: an average would hide that they differ.
    """
    shape = ModelShape.of_facts(model)
    table = saved_parameters(shape)

    def patterns(belongs: Callable[[SavedParameter], bool]) -> list[str]:
        return list(dict.fromkeys(_pattern(one) for one in table if belongs(one)))

    tied = [re.escape(engine_name(one)) + "$" for one in table if one.token_rows is not None and is_tied(table)]
    return {
        "universal_checkpoint_version": _VERSION,
        "original_vocab_size": shape.tokens,
        "padded_vocab_size": shape.vocabulary,
        "vocabulary_parameter_patterns": patterns(lambda one: one.token_rows is not None),
        "pipeline_replicated_parameter_patterns": tied,
        "tp_replicated_parameter_patterns": patterns(lambda one: one.split_dim is None),
        "parameter_with_row_parallelism_patterns": patterns(lambda one: one.split_dim == 1),
    }


def _pattern(one: SavedParameter) -> str:
    """Return a pattern for the parameter's name. A block's parameter matches in all blocks."""
    if is_of_block(one.name):
        return rf"\d+\.{re.escape(one.name_in_layer)}$"
    return re.escape(engine_name(one)) + "$"
