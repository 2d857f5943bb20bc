"""The ranks of a training: who shares blocks (tensor), who holds which stage (pipeline), who averages gradients (data).

Ranks and groups are those of `trainer.recipe.layout`; DeepSpeed's topology, which its engine takes, orders them alike.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

from trainer.core.preload import import_engine, set_process_defaults
from trainer.recipe.layout import Layout

set_process_defaults(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
import_engine()

# Names that torch 2.13 calls old: torch 2.6 has no others, and DeepSpeed 0.19 gathers weights by one after every step.
warnings.filterwarnings("ignore", message=".*(all_gather_into|reduce_scatter)_tensor.*", category=FutureWarning)

import torch  # noqa: E402

from trainer.kernels.choice import BY_TORCH, Operations  # noqa: E402


@dataclass(frozen=True)
class Parallel:
    """The place of this process among the ranks. Groups hold this rank's own members; `topology` is DeepSpeed's."""

    rank: int
    local_rank: int
    layout: Layout
    tensor_group: Any
    pipeline_group: Any
    data_group: Any
    topology: Any
    device: torch.device
    splits_sequence: bool = False  # over the tensor group, between the layers that it splits
    operations: Operations = BY_TORCH  # what this rank computes with

    @property
    def world_size(self) -> int:
        """Ranks on all nodes: tensor_size * pipeline_size * data_size."""
        return self.layout.world_size

    @property
    def tensor_rank(self) -> int:
        """The part of each split weight on this rank, from 0."""
        return self.layout.coordinates(self.rank)[0]

    @property
    def data_rank(self) -> int:
        """The replica of the model that this rank belongs to, from 0."""
        return self.layout.coordinates(self.rank)[1]

    @property
    def pipeline_rank(self) -> int:
        """The pipeline stage of this rank, from 0."""
        return self.layout.coordinates(self.rank)[2]

    @property
    def sequence_part(self) -> tuple[int, int]:
        """The slice of the sequence on this rank between split layers, and the number of slices; (0, 1) is the
        whole.
        """
        return (self.tensor_rank, self.tensor_size) if self.splits_sequence else (0, 1)

    @property
    def tensor_size(self) -> int:
        """Ranks that split one layer's weights; 1: none is split."""
        return self.layout.tensor

    @property
    def pipeline_size(self) -> int:
        """Pipeline stages."""
        return self.layout.pipeline

    @property
    def data_size(self) -> int:
        """Replicas of the model."""
        return self.layout.data

    @property
    def is_first_stage(self) -> bool:
        """Return whether this rank has the embedding. With a single stage it is the last as well."""
        return self.pipeline_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Return whether this rank has the output layer and the loss."""
        return self.pipeline_rank == self.pipeline_size - 1

    @property
    def needs_data(self) -> bool:
        """Return whether this rank's stage reads batches: the first its tokens, the last its labels."""
        return self.is_first_stage or self.is_last_stage
