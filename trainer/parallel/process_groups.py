"""The ranks of a training: who shares blocks (tensor), who holds which stage (pipeline), who averages gradients (data).

Ranks and groups are those of `trainer.recipe.layout`; DeepSpeed's topology, which its engine takes, orders them alike.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor

from trainer.core.preload import import_engine, set_process_defaults
from trainer.kernels.choice import BY_TORCH, Operations, by_torch_alone, choose
from trainer.kernels.times import kept_times
from trainer.parallel.determinism import be_deterministic
from trainer.recipe.layout import Layout, splits_sequence
from trainer.recipe.options import Options, OptionsError

set_process_defaults(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
import_engine()

# Names that torch 2.13 calls old: torch 2.6 has no others, and DeepSpeed 0.19 gathers weights by one after every step.
warnings.filterwarnings("ignore", message=".*(all_gather_into|reduce_scatter)_tensor.*", category=FutureWarning)


# What the launcher says to each rank, as it is for one that has no launcher.
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


@dataclass(frozen=True)
class Parallel:
    """This process's place among the ranks. Groups hold this rank's own members; `topology` is DeepSpeed's."""

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
        """Which part of each split weight this rank has, from 0."""
        return self.layout.coordinates(self.rank)[0]

    @property
    def data_rank(self) -> int:
        """The replica of the model that this rank belongs to, from 0."""
        return self.layout.coordinates(self.rank)[1]

    @property
    def pipeline_rank(self) -> int:
        """This rank's pipeline stage, from 0."""
        return self.layout.coordinates(self.rank)[2]

    @property
    def sequence_part(self) -> tuple[int, int]:
        """Which of how many slices of the sequence this rank has between split layers: (0, 1) is all of it."""
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
        """Whether this rank has the embedding. With a single stage it is the last as well."""
        return self.pipeline_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank has the output layer and the loss."""
        return self.pipeline_rank == self.pipeline_size - 1

    @property
    def needs_data(self) -> bool:
        """Whether this rank's stage reads batches: the first its tokens, the last its labels."""
        return self.is_first_stage or self.is_last_stage


def initialize(options: Options, alone: bool = False) -> Parallel:
    """Join the process group and find this rank's place. Collective; calling it again starts from a fresh group.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT come from the launcher; without them there is one rank. gloo on a CPU,
    nccl on a GPU. `alone` there is one whatever they say, which were another program's. Raises OptionsError when the
    ranks do not divide by TP x PP, for nccl without a GPU, and for kernels that have to be there and are not.
    """
    import deepspeed

    if alone:
        os.environ.pop("MASTER_PORT", None)
        os.environ.update(_ALONE)
    _set_log_level(options)
    if options.deterministic:
        be_deterministic()
    for name, value in _ALONE.items():
        os.environ.setdefault(name, value)
    world_size, local_rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    try:
        layout = Layout.of(options, world_size)
    except ValueError as error:
        raise OptionsError(str(error)) from None
    on_gpu = torch.cuda.is_available()
    if options.distributed_backend == "nccl" and not on_gpu:
        raise OptionsError("--distributed-backend nccl needs a GPU, and there is none here: leave the option out")
    if on_gpu:
        torch.cuda.set_device(local_rank)
    timeout = timedelta(minutes=options.distributed_timeout_minutes)
    if not dist.is_initialized():
        backend = options.distributed_backend or ("nccl" if on_gpu else "gloo")
        if world_size == 1 and "MASTER_PORT" not in os.environ:
            dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group(backend, timeout=timeout)
    deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)
    # DeepSpeed makes groups of its own, and without a word of time, for which torch has a default of its own.
    deepspeed.comm.comm.cdb.new_group = functools.partial(dist.new_group, timeout=timeout)
    rank = dist.get_rank()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    return Parallel(
        rank=rank,
        local_rank=local_rank,
        layout=layout,
        tensor_group=_own_group(layout.tensor_groups(), rank, timeout),
        pipeline_group=_own_group(layout.pipeline_groups(), rank, timeout),
        data_group=_own_group(layout.data_groups(), rank, timeout),
        topology=PipeModelDataParallelTopology(num_pp=layout.pipeline, num_mp=layout.tensor, num_dp=layout.data),
        device=device,
        splits_sequence=splits_sequence(options),
        operations=_operations(options, device),
    )


def _operations(options: Options, device: torch.device) -> Operations:
    """What this rank computes with: what is chosen where all ranks choose alike, else torch on all. Collective.

    Ranks that round otherwise would each train a copy of their own of what they have in common. So all choose by what
    was measured where the first one is: each node may have a cache of its own.
    """
    kept: list[Any] = [kept_times(device) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(kept)
    own = choose(options, device, kept[0])
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (platform.node(), [(path.family, path.by, path.why) for path in own.paths]))
    of_first = [(family, by) for family, by, _ in told[0][1]]
    for rank, (node, paths) in enumerate(told):
        for (family, by), (_, other, why) in zip(of_first, paths, strict=True):
            if other != by:
                said = f"on rank {rank} ({node}) {family} is by {other}: {why}; on rank 0 by {by}"
                if options.abort_on_unmet_fused_kernel_constraints:
                    raise OptionsError(f"--abort-on-unmet-fused-kernel-constraints: {said}")
                return by_torch_alone(options, device, said)
    return own


def _own_group(groups: list[list[int]], rank: int, timeout: timedelta) -> Any:
    """This rank's group of one kind. Every rank makes every group, in the same order, as torch requires.

    Without a word torch gives a group 30 minutes, whatever the first one has.
    """
    own = None
    for ranks in groups:
        group = dist.new_group(ranks, timeout=timeout)
        if rank in ranks:
            own = group
    return own


def _set_log_level(options: Options) -> None:
    first = os.environ.get("RANK", "0") == "0"
    level = options.log_level if first else options.log_level_replica
    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(level.upper())
    for handler in logger.handlers:
        handler.setLevel(level.upper())


# Rows are drawn in blocks of about this many elements, each with a seed of its own: a rank draws only what it holds.
_BLOCK_ELEMENTS = 1 << 20


def initial_weight(
    name: str,
    shape: tuple[int, ...],
    std: float,
    seed: int,
    dim: int = 0,
    first: int = 0,
    count: int | None = None,
    drawn_rows: int | None = None,
) -> Tensor:
    """`count` rows (dim 0) or columns (dim 1) from `first` on of the fp32 weight `name` of `shape`, from N(0, std).

    Only the first `drawn_rows` of the whole weight are drawn, when that is given, and those do not depend on how many
    more rows there are: these are 0.
    """
    rows, columns = shape
    drawn = rows if drawn_rows is None else drawn_rows
    count = shape[dim] - first if count is None else count
    wanted_rows = range(min(first, drawn), min(first + count, drawn)) if dim == 0 else range(rows)
    block_rows = max(1, _BLOCK_ELEMENTS // columns)
    weight = torch.zeros((count, columns) if dim == 0 else (rows, count))
    for block_start in range(wanted_rows.start // block_rows * block_rows, wanted_rows.stop, block_rows):
        block_stop = min(block_start + block_rows, drawn)
        generator = torch.Generator().manual_seed(seed_of(seed, name, block_start))
        block = torch.empty(block_stop - block_start, columns).normal_(0.0, std, generator=generator)
        low, high = max(block_start, wanted_rows.start), min(block_stop, wanted_rows.stop)
        part = block[low - block_start : high - block_start]
        weight[low - wanted_rows.start : high - wanted_rows.start] = (
            part if dim == 0 else part[:, first : first + count]
        )
    return weight


def seed_of(*parts: int | str) -> int:
    """A 63-bit seed from whatever names a random stream."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
