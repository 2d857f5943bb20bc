"""The start of the ranks: the process group, this rank's groups, and what it computes with."""

from __future__ import annotations

import functools
import logging
import os
import platform
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

from trainer.kernels.choice import Operations, by_torch_alone, choose
from trainer.parallel.determinism import be_deterministic
from trainer.parallel.process_groups import Parallel
from trainer.recipe.layout import Layout, splits_sequence
from trainer.recipe.options import Options, OptionsError

# What the launcher says to each rank, as it is for one that has no launcher.
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


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
        raise OptionsError("--distributed-backend nccl needs a GPU, and this node has none: remove the option")
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
    """Return this rank's operations: the chosen ones if all ranks choose alike, else torch on all. Collective.

    Ranks that round differently would train different copies of shared weights, and each node may have its own cache.
    """
    own = choose(options, device)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (platform.node(), [(path.family, path.by, path.why) for path in own.paths]))
    of_first = [(family, by) for family, by, _ in told[0][1]]
    for rank, (node, paths) in enumerate(told):
        for (family, by), (_, other, why) in zip(of_first, paths, strict=True):
            if other != by:
                said = f"on rank {rank} ({node}) {family} is by {other}: {why}; on rank 0 by {by}"
                if options.abort_on_unmet_fused_kernel_constraints:
                    raise OptionsError(f"--abort-on-unmet-fused-kernel-constraints: {said}")
                return by_torch_alone(options, said)
    return own


def _own_group(groups: list[list[int]], rank: int, timeout: timedelta) -> Any:
    """Return this rank's group of one kind. Every rank makes every group, in the same order, as torch requires.

    Without an explicit time-out torch gives a group 30 minutes, whatever the first one has.
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
