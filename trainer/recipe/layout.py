"""Groups of ranks that work together, and the layers of each pipeline stage. Pure arithmetic, without torch.

Ranks count tensor first, then data, then pipeline: rank = (pipeline_stage * data + data_rank) * tensor + tensor_rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: How pipeline stages are balanced: by blocks alone, or by blocks and the two embeddings.
BY_BLOCK = "type:transformer"
BY_BLOCK_AND_EMBEDDING = "type:transformer|embedding"


@dataclass(frozen=True)
class Layout:
    """The division of the ranks: world_size = tensor * pipeline * data."""

    world_size: int
    tensor: int
    pipeline: int
    data: int

    @classmethod
    def of(cls, options: Mapping[str, Any], world_size: int) -> Layout:
        """Return the options' layout on `world_size` ranks, with as many replicas as fit.

        Raises ValueError if the ranks do not divide.
        """
        tensor, pipeline = options["tensor_model_parallel_size"], options["pipeline_model_parallel_size"]
        if tensor < 1 or pipeline < 1:
            raise ValueError(f"tensor and pipeline parallelism must be at least 1, not {tensor} and {pipeline}")
        if world_size < 1 or world_size % (tensor * pipeline):
            raise ValueError(
                f"{world_size} ranks do not divide by tensor x pipeline = {tensor} x {pipeline} = {tensor * pipeline}"
            )
        return cls(world_size, tensor, pipeline, world_size // (tensor * pipeline))

    def __str__(self) -> str:
        """Return the layout as text."""
        return f"TP {self.tensor} x PP {self.pipeline} x DP {self.data}"

    def rank(self, tensor: int, data: int, pipeline: int) -> int:
        """Return the global rank at these coordinates."""
        return (pipeline * self.data + data) * self.tensor + tensor

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """Return (tensor, data, pipeline) of a global rank."""
        rest, tensor = divmod(rank, self.tensor)
        pipeline, data = divmod(rest, self.data)
        return tensor, data, pipeline

    def tensor_groups(self) -> list[list[int]]:
        """Return the groups of ranks that share one layer's weights."""
        return [
            [self.rank(t, d, p) for t in range(self.tensor)] for p in range(self.pipeline) for d in range(self.data)
        ]

    def pipeline_groups(self) -> list[list[int]]:
        """Return the groups of ranks that pass a micro-batch from stage to stage."""
        return [
            [self.rank(t, d, p) for p in range(self.pipeline)] for d in range(self.data) for t in range(self.tensor)
        ]

    def data_groups(self) -> list[list[int]]:
        """Return the groups of ranks that hold the same weights and average their gradients."""
        return [
            [self.rank(t, d, p) for d in range(self.data)] for p in range(self.pipeline) for t in range(self.tensor)
        ]

    def model_groups(self) -> list[list[int]]:
        """Return the groups of ranks that form one replica of the model."""
        return [
            [self.rank(t, d, p) for p in range(self.pipeline) for t in range(self.tensor)] for d in range(self.data)
        ]


def layout_if_any(options: Mapping[str, Any], world_size: int | None) -> Layout | None:
    """Return the options' layout; None if the ranks do not divide, or if their number is unknown (None)."""
    try:
        return None if world_size is None else Layout.of(options, world_size)
    except ValueError:
        return None


class UnevenStages(ValueError):
    """The pipeline stages would have unequal numbers of layers, or other ones than listed."""


class EmptyStage(ValueError):
    """A pipeline stage would have no transformer block."""


def stage_sizes(method: str) -> list[int] | None:
    """Return the blocks of each stage where the method is their list, such as 3,4,4,3; None otherwise."""
    return list(map(int, method.split(","))) if re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", method) else None


def listed_stages(options: Mapping[str, Any]) -> str | None:
    """Return the list of blocks that `--decoder-first-` and `--decoder-last-pipeline-num-layers` mean.

    The stages between them share the rest evenly. None without these options, or if they do not divide.
    """
    ends = [options.get(f"decoder_{end}_pipeline_num_layers") for end in ("first", "last")]
    layers, stages = options.get("num_layers"), options.get("pipeline_model_parallel_size", 1)
    others = stages - sum(end is not None for end in ends)
    if ends == [None, None] or layers is None or others < 0:
        return None
    rest = layers - sum(end or 0 for end in ends)
    if rest < others or (rest % others if others else rest):
        return None
    sizes = [ends[0], *([rest // others] * others if others else []), ends[1]]
    return ",".join(str(size) for size in sizes if size is not None)


def check_stages(layers: int, pipeline: int, method: str = BY_BLOCK) -> None:
    """Raise UnevenStages if `pipeline` stages would differ, EmptyStage if one would have no block."""
    sizes = stage_sizes(method)
    if sizes is not None:
        if len(sizes) != pipeline or sum(sizes) != layers:
            raise UnevenStages(f"{method} are not {layers} layers on {pipeline} pipeline stages")
        if 0 in sizes:
            raise EmptyStage(f"{method} leave a stage without a transformer block")
        return
    extra = _embeddings_dealt(method)
    if (layers + extra) % pipeline:
        what = f"{layers} layers + {extra} embeddings" if extra else f"{layers} layers"
        raise UnevenStages(f"{what} do not divide by {pipeline} pipeline stages")
    if pipeline > 1 and extra and (layers + extra) // pipeline < 2:
        raise EmptyStage(f"{layers} layers leave a stage of {pipeline} without a transformer block")


def blocks_per_stage(layers: int, pipeline: int, method: str = BY_BLOCK) -> list[int]:
    """Return the transformer blocks of each pipeline stage. Raises as `check_stages` does.

    With `type:transformer|embedding`, the embeddings before the first block and after the last count as one block
    each.
    """
    check_stages(layers, pipeline, method)
    if sizes := stage_sizes(method):
        return sizes
    extra = _embeddings_dealt(method)
    stages = [(layers + extra) // pipeline] * pipeline
    stages[0] -= extra // 2
    stages[-1] -= extra // 2
    return stages


def _embeddings_dealt(method: str) -> int:
    return 2 if method == BY_BLOCK_AND_EMBEDDING else 0


def splits_sequence(options: Mapping[str, Any]) -> bool:
    """Return True if each tensor-parallel rank has a slice of the residual stream. A single rank has all of it."""
    return bool(options["sequence_parallel"] and options["tensor_model_parallel_size"] > 1)


def sequence_notices(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a notice if the option has no effect."""
    if not options["sequence_parallel"] or splits_sequence(options):
        return ()
    return ("--sequence-parallel changes nothing: with --tensor-model-parallel-size 1 there are no other ranks",)


def sequence_errors(options: Mapping[str, Any]) -> list[str]:
    """Return the errors for a sequence that cannot be split, and for options that conflict with splitting."""
    if not splits_sequence(options):
        return []
    length, tensor = options["seq_length"], options["tensor_model_parallel_size"]
    errors = []
    if length is not None and length % tensor:
        errors.append(
            f"--seq-length {length} is not divisible by --tensor-model-parallel-size {tensor}, "
            "over which --sequence-parallel splits it"
        )
    return errors + [
        f"--{key.replace('_', '-')} with --sequence-parallel: what enters a block is split already, leave the first out"
        for key in ("partition_activations", "distribute_checkpointed_activations")
        if options[key]
    ]
