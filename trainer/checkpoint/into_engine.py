"""Filling one rank's engine from a checkpoint of any layout: of every parameter the part that the rank has, no more.

Weights go into the model, fp32 weights and moments straight into the partition of the optimizer that is this data
rank's. Nothing here talks to other ranks.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy
import torch
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor, nn

from trainer.checkpoint.destination import Destination, Overtaken, as_checkpoint_error
from trainer.checkpoint.saved_state import MASTER, SavedState
from trainer.checkpoint.stored_tensors import boxes_of_run
from trainer.core.files import be_as_open_as_its_folder, write_atomically
from trainer.engine.members import forget_linked_states, fragment_of, optimizer_groups
from trainer.formats.checkpoint.history import ROLLBACKS, Rollback, saved_now
from trainer.formats.checkpoint.manifest import LATEST, SavedParameter, iteration_of, tag_of
from trainer.formats.checkpoint.partitions import engine_name
from trainer.formats.checkpoint.starting import FellBack
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_line
from trainer.parallel.agreement import from_first_rank

# Of the loss scaler: where it has come to. What it goes by is the command line's.
_SCALER_COUNTERS = ("cur_iter", "last_overflow_iter")
_COMPARED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Own:
    """What one rank has of one of the engine's parameters."""

    saved: SavedParameter
    parameter: nn.Parameter
    tensor_rank: int
    copy: int  # which tensor rank's file it comes from where all have it whole

    @property
    def rows(self) -> int:
        """Of the rank's part; a vector's elements."""
        return int(self.parameter.shape[0])

    @property
    def columns(self) -> int:
        """Of the rank's part; 1 for a vector."""
        return int(self.parameter.shape[1]) if self.parameter.dim() == 2 else 1

    def part(self, top: int, bottom: int, left: int, right: int) -> tuple[slice, ...]:
        """Rows and columns of the rank's part as those of the whole; beyond the end where that has fewer."""
        down = self.tensor_rank * self.rows if self.saved.split_dim == 0 else 0
        along = self.tensor_rank * self.columns if self.saved.split_dim == 1 else 0
        whole = (slice(down + top, down + bottom), slice(along + left, along + right))
        return whole[: self.parameter.dim()]


def own_parameters(engine: PipelineEngine, state: SavedState) -> list[Own]:
    """What the rank needs. Raises CheckpointError, with both shapes, where the checkpoint is another model's."""
    saved = {engine_name(one): one for one in state.parameters.values()}
    parallel = engine.module.parallel
    copy = parallel.tensor_rank if state.tensor_ranks == parallel.tensor_size else 0
    found = []
    for name, parameter in engine.module.named_parameters():
        if name not in saved:
            raise CheckpointError(f"{state.folder} has no {name}: it is another model's")
        found.append(Own(saved[name], parameter, parallel.tensor_rank, copy))
        _refuse_other_shape(state, found[-1], parallel.tensor_size)
    return found


def _refuse_other_shape(state: SavedState, own: Own, tensor: int) -> None:
    is_split = getattr(own.parameter, "tensor_model_parallel", False)
    split = getattr(own.parameter, "partition_dim", None) if is_split else None
    shape = [size * (tensor if dim == split else 1) for dim, size in enumerate(own.parameter.shape)]
    saved = list(own.saved.shape)
    if own.saved.token_rows is not None and shape[0] >= own.saved.token_rows:
        shape[0] = saved[0]  # the rest is padding, which may be longer or shorter here
    if saved != shape or (tensor > 1 and split != own.saved.split_dim):
        raise CheckpointError(
            f"{state.folder}: {own.saved.name} was saved as {saved} split along {own.saved.split_dim}, this training "
            f"has {shape} split along {split}: it is another model's"
        )


def fill_weights(engine: PipelineEngine, state: SavedState, precision_changes: bool) -> None:
    """Set the model's weights. precision_changes: take them from the fp32 ones, where there are any, and round these.

    Raises CheckpointError.
    """
    for own in own_parameters(engine, state):
        target = own.parameter.detach()
        if precision_changes and state.has_optimizer:
            fill_run(state, own, MASTER, 0, target.view(-1))
        else:
            fill_run(state, own, None, 0, target.view(-1))


def fill_optimizer(engine: PipelineEngine, state: SavedState, with_moments: bool) -> None:
    """Set this data rank's fp32 weights and, `with_moments`, all else that the optimizer keeps. Raises CheckpointError.

    The weights must be there: those that are not the fp32 ones rounded are another checkpoint's.
    """
    optimizer = engine.optimizer.optimizer
    groups = list(_partitioned(engine, own_parameters(engine, state)))
    for group, owned in zip(optimizer.param_groups, groups, strict=True):
        partition = group["params"][0]
        _fill_partition(state, owned, MASTER, partition.detach())
        for own, start, first, elements in owned:
            _refuse_unlike(state, own, partition.detach()[start : start + elements], first)
    if not with_moments:
        return
    for group, owned in zip(optimizer.param_groups, groups, strict=True):
        partition = group["params"][0]
        before, kept = optimizer.state[partition], dict[str, Tensor]()
        for which in state.moments:
            old = before.get(which)  # of a training that goes back; every parameter holds views of it
            kept[which] = torch.empty_like(partition, requires_grad=False) if old is None else old
            _fill_partition(state, owned, which, kept[which])
        if "betas" in group:
            steps = {state.step(own.saved.name, own.copy) for own, *_ in owned} or {_any_step(state)}
            if len(steps) > 1:
                raise CheckpointError(
                    f"{state.folder}: its optimizer has counted {sorted(steps)} steps of one training"
                )
            on_device = group.get("fused") or group.get("capturable")
            device = partition.device if on_device else torch.device("cpu")
            kept["step"] = torch.tensor(steps.pop(), dtype=torch.float32, device=device)
        optimizer.state[partition] = kept
    forget_linked_states(engine)


def fill_loss_scaler(engine: PipelineEngine, state: SavedState) -> None:
    """Go on with the fp16 loss scale that had been found, where both scale dynamically. Raises CheckpointError."""
    scaler: Any = getattr(engine.optimizer, "loss_scaler", None)
    if scaler is None or not scaler.dynamic:
        return
    saved = state.loss_scaler()
    if not saved.get("dynamic"):
        return
    scaler.cur_scale = max(saved["cur_scale"], scaler.min_scale)
    scaler.cur_hysteresis = min(saved["cur_hysteresis"], scaler.delayed_shift)
    for name in _SCALER_COUNTERS:
        setattr(scaler, name, saved[name])


def _any_step(state: SavedState) -> float:
    return state.step(next(iter(state.parameters)))


#: (what, start in the partition, first of its own elements, elements)
_Placed = tuple[Own, int, int, int]


def _partitioned(engine: PipelineEngine, owned: list[Own]) -> Iterator[list[_Placed]]:
    """Of each of the optimizer's groups: what this data rank's partition has, in the partition's order."""
    by_parameter = {own.parameter: own for own in owned}
    for group in optimizer_groups(engine):
        placed = [
            (by_parameter[parameter], here.start, here.first, here.elements)
            for parameter in group
            if (here := fragment_of(parameter)) is not None
        ]
        yield sorted(placed, key=lambda one: one[1])


def _fill_partition(state: SavedState, placed: list[_Placed], which: str, flat: Tensor) -> None:
    end = 0
    for own, start, first, elements in placed:
        flat[end:start] = 0
        fill_run(state, own, which, first, flat[start : start + elements])
        end = start + elements
    flat[end:] = 0


def fill_run(state: SavedState, own: Own, which: str | None, first: int, out: Tensor) -> None:
    """Fill the flat `out` with the rank's elements from `first` on, row after row; which: None for the weights."""
    place = 0
    for box in boxes_of_run(first, out.numel(), own.columns):
        target = out[place : place + box.rows * box.columns]
        part = own.part(box.top, box.bottom, box.left, box.right)
        rows = len(range(*part[0].indices(own.saved.shape[0])))  # those behind the last one saved are padding
        target[rows * box.columns :] = 0
        shape = (rows, box.columns)[: len(part)]
        wanted = target[: rows * box.columns].view(shape)
        if which is None:
            state.weight(own.saved.name, part, wanted, own.copy)
        else:
            state.optimizer(own.saved.name, which, part, wanted, own.copy)
        place += box.rows * box.columns


def _refuse_unlike(state: SavedState, own: Own, master: Tensor, first: int) -> None:
    """Refuse weights that are not the fp32 ones rounded."""
    weights = own.parameter.detach().view(-1)[first : first + master.numel()]
    for start in range(0, master.numel(), _COMPARED_AT_ONCE):
        part = weights[start : start + _COMPARED_AT_ONCE]
        rounded = master[start : start + _COMPARED_AT_ONCE].to(part.dtype)
        if not torch.equal(part, rounded) and not torch.equal(part.nan_to_num(), rounded.nan_to_num()):
            raise CheckpointError(
                f"{state.folder}: the weights of {own.saved.name} are not its optimizer's: one is another checkpoint's"
            )


def random_states() -> dict[str, Any]:
    """States of Python's, numpy's, torch's and, where one is used, the GPU's generator, under Megatron's names.

    Dropout draws from seeds of its own and needs none of them; they are for whatever else draws.
    """
    kind, keys, position, has_gauss, cached = numpy.random.get_state()
    states: dict[str, Any] = {
        "random_rng_state": random.getstate(),
        "np_rng_state": (str(kind), torch.from_numpy(numpy.asarray(keys).astype("int64")), position, has_gauss, cached),
        "torch_rng_state": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        states["cuda_rng_state"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Set what `random_states` returned; states that are not there stay as they are."""
    if "random_rng_state" in states:
        random.setstate(states["random_rng_state"])
    if "np_rng_state" in states:
        kind, keys, position, has_gauss, cached = states["np_rng_state"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))
    if "torch_rng_state" in states:
        torch.set_rng_state(states["torch_rng_state"].cpu())
    if "cuda_rng_state" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda_rng_state"].cpu())


def step_back(destination: Destination, fell_back: FellBack) -> None:
    """Let the checkpoint that was fallen back to be the latest, on record, where the training saves beside it.

    Collective. Raises Refusal, and Overtaken when it is another writer's to do.
    """
    before, to = iteration_of(fell_back.damaged.name), fell_back.instead.manifest.iteration
    go_back(destination, to, before, fell_back.said())


def go_back(destination: Destination, to: int, before: int | None, why: str) -> None:
    """Let the checkpoint at iteration `to` be the latest, on record as what came instead of `before`.

    Collective. Raises as `step_back`.
    """

    def act() -> str | None:
        with as_checkpoint_error(destination.folder), destination.shown() as lost:
            if lost is None:
                root = destination.folder.place()
                _put_on_record(root / ROLLBACKS, to, before, why)
                write_atomically(root / LATEST, tag_of(to))
            return lost

    lost = from_first_rank(act, (CheckpointError,))
    if lost is not None:
        raise Overtaken(lost)


def _put_on_record(path: Path, to: int, before: int | None, why: str) -> None:
    who = saved_now()
    line = Rollback(
        to=to,
        before=before,
        by=f"{who.user}@{who.host}",
        at=datetime.now().astimezone().replace(microsecond=0),
        why=why,
    )
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    with os.fdopen(fd, "ab") as file:
        file.write(json_line(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    be_as_open_as_its_folder(path)
