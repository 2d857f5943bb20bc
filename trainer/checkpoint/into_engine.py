"""Loading of one rank's part of each parameter into its engine, from a checkpoint of any layout.

Weights go into the model. fp32 weights and moments go directly into this data rank's partition of the optimizer.
Nothing here communicates with other ranks, except `step_back` and `go_back`.
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

# The state of the loss scaler. Its settings come from the command line.
_SCALER_COUNTERS = ("cur_iter", "last_overflow_iter")
_COMPARED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Own:
    """One rank's part of one of the engine's parameters."""

    saved: SavedParameter
    parameter: nn.Parameter
    tensor_rank: int
    copy: int  # the tensor rank whose file is read, if all have the whole parameter

    @property
    def rows(self) -> int:
        """Rows of the rank's part; the elements of a vector."""
        return int(self.parameter.shape[0])

    @property
    def columns(self) -> int:
        """Columns of the rank's part; 1 for a vector."""
        return int(self.parameter.shape[1]) if self.parameter.dim() == 2 else 1

    def part(self, top: int, bottom: int, left: int, right: int) -> tuple[slice, ...]:
        """Return rows and columns of the rank's part, as slices of the whole, which may be shorter."""
        down = self.tensor_rank * self.rows if self.saved.split_dim == 0 else 0
        along = self.tensor_rank * self.columns if self.saved.split_dim == 1 else 0
        whole = (slice(down + top, down + bottom), slice(along + left, along + right))
        return whole[: self.parameter.dim()]


def own_parameters(engine: PipelineEngine, state: SavedState) -> list[Own]:
    """Return the parts that the rank needs. Raises CheckpointError, with both shapes, if the model is another."""
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
    """Set the model's weights. Raises CheckpointError.

    precision_changes: round the fp32 weights, if there are any, instead of reading the stored ones.
    """
    for own in own_parameters(engine, state):
        target = own.parameter.detach()
        if precision_changes and state.has_optimizer:
            fill_run(state, own, MASTER, 0, target.view(-1))
        else:
            fill_run(state, own, None, 0, target.view(-1))


def fill_optimizer(engine: PipelineEngine, state: SavedState, with_moments: bool) -> None:
    """Set this data rank's fp32 weights and, `with_moments`, the rest of the optimizer's state.

    The weights must be set before: weights that do not equal the rounded fp32 ones are another checkpoint's. Raises
    CheckpointError.
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
            old = before.get(which)  # after a rollback; every parameter holds views of it
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
    """Set the checkpoint's fp16 loss scale, if both scale dynamically. Raises CheckpointError."""
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
    """Yield for each group of the optimizer the parts in this data rank's partition, in order."""
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
    """Fill the flat `out` with the rank's elements from `first` on, in row order. which: None for the weights."""
    place = 0
    for box in boxes_of_run(first, out.numel(), own.columns):
        target = out[place : place + box.rows * box.columns]
        part = own.part(box.top, box.bottom, box.left, box.right)
        rows = len(range(*part[0].indices(own.saved.shape[0])))  # rows after the last saved one are padding
        target[rows * box.columns :] = 0
        shape = (rows, box.columns)[: len(part)]
        wanted = target[: rows * box.columns].view(shape)
        if which is None:
            state.weight(own.saved.name, part, wanted, own.copy)
        else:
            state.optimizer(own.saved.name, which, part, wanted, own.copy)
        place += box.rows * box.columns


def _refuse_unlike(state: SavedState, own: Own, master: Tensor, first: int) -> None:
    """Raise CheckpointError if the weights do not equal the rounded fp32 ones."""
    weights = own.parameter.detach().view(-1)[first : first + master.numel()]
    for start in range(0, master.numel(), _COMPARED_AT_ONCE):
        part = weights[start : start + _COMPARED_AT_ONCE]
        rounded = master[start : start + _COMPARED_AT_ONCE].to(part.dtype)
        if not torch.equal(part, rounded) and not torch.equal(part.nan_to_num(), rounded.nan_to_num()):
            raise CheckpointError(
                f"{state.folder}: the weights of {own.saved.name} are not its optimizer's: one is another checkpoint's"
            )


def random_states() -> dict[str, Any]:
    """Return the states of Python's, numpy's, torch's and the used GPU's generator, under Megatron's names.

    Dropout has its own seeds and needs none of them. They are for other random numbers.
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
    """Set the states of `random_states`. Missing ones are not changed."""
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
    """Make the checkpoint of a fallback the latest and record it, if the training saves to the same folder.

    Collective. Raises Refusal, and Overtaken if another writer has the training.
    """
    before, to = iteration_of(fell_back.damaged.name), fell_back.instead.manifest.iteration
    go_back(destination, to, before, fell_back.message())


def go_back(destination: Destination, to: int, before: int | None, why: str) -> None:
    """Make the checkpoint at iteration `to` the latest, and record that it replaces `before`.

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
