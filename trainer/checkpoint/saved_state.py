"""A checkpoint as whole parameters, from any layout. Any part of a parameter can be read without the rest.

    state = SavedState(folder, manifest)
    state.weight("layers.0.self_attention.dense.weight", (slice(0, 8), slice(0, 16)))
    state.optimizer("layers.0.self_attention.dense.weight", "exp_avg")

The manifest's parameters and layout determine where everything is stored (`formats.checkpoint.partitions`). Each
opened file is checked against them, so a file that differs raises an error instead of being misread.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainer.checkpoint.stored_tensors import Box, Run, StoredTensor, StoredTensors, fill, read_mapping
from trainer.core.dtypes import DTYPES
from trainer.formats.checkpoint.manifest import Manifest, SavedParameter
from trainer.formats.checkpoint.partitions import (
    Cut,
    FlatGroup,
    Fragment,
    engine_name,
    flat_groups,
    optimizer_file,
    parameters_of,
    rank_shape,
    stages,
    state_file,
    weights_file,
)
from trainer.formats.errors import CheckpointError

#: The name of the fp32 weights among a parameter's optimizer states.
MASTER = "fp32"


class OptimizerStates:
    """The optimizer states of one data rank's partition of each group, with the optimizer's moments.

    Raises CheckpointError, with both values, if the file has another partition.
    """

    def __init__(self, path: Path, groups: list[FlatGroup], data_rank: int, moments: Iterable[str]) -> None:
        self._path, self._groups, self._data_rank = path, groups, data_rank
        self._file = StoredTensors(path)
        self._states = self._file.mapping("optimizer_state_dict")
        self._hold_to_partition()
        masters = self._states.get("single_partition_of_fp32_groups")
        moving = self._file.mapping("optimizer_state_dict", "base_optimizer_state", "state")
        self._tensors: list[dict[str, StoredTensor | None]] = []
        self._steps: list[Any] = []
        for number, group in enumerate(groups):
            filled, kept = group.filled(data_rank), moving.get(number) or {}  # before the first step there are none
            master = masters[number] if isinstance(masters, list) and number < len(masters) else None
            found = {name: self._flat(kept.get(name), name, number, filled) if kept else None for name in moments}
            self._tensors.append({MASTER: self._flat(master, MASTER, number, filled), **found})
            self._steps.append(kept.get("step"))

    def _flat(self, found: Any, name: str, group: int, elements: int) -> StoredTensor:
        return self._file.tensor(found, f"{name} of group {group}", elements, torch.float32)

    def tensor(self, group: int, which: str) -> StoredTensor | None:
        """Return the flat partition of a group. None means zeros."""
        return self._tensors[group][which]

    def step(self, group: int) -> float:
        """Return the steps that the optimizer has counted for a group."""
        found = self._steps[group]
        if not isinstance(found, Tensor):
            return float(found) if isinstance(found, (int, float)) else 0.0
        value = torch.empty(1)
        self._file.tensor(found, f"step of group {group}", 1, torch.float32).read(0, value)
        if not math.isfinite(value.item()) or value.item() < 0:
            raise CheckpointError(f"{self._path}: the step of group {group} is {value.item()}")
        return value.item()

    def loss_scaler(self) -> Mapping[str, Any]:
        """Return the fields of DeepSpeed's loss scaler; empty without one."""
        scaler = self._states.get("loss_scaler")
        return {} if scaler is None else dict(vars(scaler))

    def _hold_to_partition(self) -> None:
        count = self._states.get("partition_count")
        expected = [group.data for group in self._groups]
        if count != expected:
            raise CheckpointError(
                f"{self._path} is split for {count} data-parallel ranks, the manifest's layout has {expected}: "
                "it is another checkpoint's"
            )
        mappings = self._states.get("param_slice_mappings")
        if not isinstance(mappings, list) or len(mappings) != len(self._groups):
            raise CheckpointError(f"{self._path} does not list its parameters")
        for mapping, group in zip(mappings, self._groups, strict=True):
            found = {name: (one.start, one.numel) for name, one in mapping.items()}
            refuse_difference(self._path, "(start, elements)", found, group.addresses(self._data_rank))


def refuse_difference(path: Path, what: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise CheckpointError, with both values, for the first name whose value in a file differs from the manifest."""
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            values = f"{what} {found.get(name, 'none')}, the manifest's parameters give {expected.get(name, 'none')}"
            raise CheckpointError(f"{path}: {name} has {values}: one of them is another checkpoint's")


#: A part of a parameter: a slice without a step for each of its dimensions.
Part = tuple[slice, ...]

#: Each optimizer's states of a parameter besides the fp32 weights, and the stored dtype of each precision.
MOMENTS = {"adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
_OPEN_FILES = 64

T = TypeVar("T")


class SavedState:
    """The parameters and optimizer states of a checkpoint, by their names in the model.

    Every method raises CheckpointError, one line, for a file that is missing, truncated, not plain data, or another's.
    Not thread-safe.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.parameters: Mapping[str, SavedParameter] = {one.name: one for one in parameters_of(manifest)}
        try:
            self._cut = Cut.of(manifest.layout)
            stage_parameters = stages(self.parameters.values(), self._cut)
            self._groups = [flat_groups(stage, self._cut) for stage in stage_parameters]
            self._dtype = DTYPES[manifest.precision]
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{folder}: the manifest is invalid: {error}") from None
        self._stage = {one.name: number for number, stage in reversed([*enumerate(stage_parameters)]) for one in stage}
        self._open: OrderedDict[Any, Any] = OrderedDict()

    @property
    def moments(self) -> tuple[str, ...]:
        """The optimizer's states of each parameter besides `fp32`; empty if they were not saved."""
        return MOMENTS.get(str(self.manifest.layout.get("optimizer")), ())

    @property
    def has_optimizer(self) -> bool:
        """True if there are optimizer states."""
        return bool(self.moments)

    @property
    def tensor_ranks(self) -> int:
        """The number of tensor ranks that share each split parameter."""
        return self._cut.tensor

    def weight(self, name: str, part: Part | None = None, out: Tensor | None = None, copy: int = 0) -> Tensor:
        """Return a part of a parameter (None: the whole) in the model's dtype, in `out` if given.

        out: of the part's shape, contiguous, of any dtype, on any device. copy: the tensor rank whose copy is read,
        for a parameter that all of them have whole.
        """
        return self._gathered(name, part, out, copy, self._dtype, self._weight_runs)

    def optimizer(
        self, name: str, which: str, part: Part | None = None, out: Tensor | None = None, copy: int = 0
    ) -> Tensor:
        """Return a part of a parameter's optimizer state, fp32: "fp32" or one of `moments`; zeros before any step.

        `out` and `copy` as for `weight`.
        """
        if which != MASTER and which not in self.moments:
            has = f"{MASTER}, {', '.join(self.moments)}" if self.has_optimizer else "no optimizer states"
            raise CheckpointError(f"{self.folder} has no {which}: it has {has}")

        return self._gathered(name, part, out, copy, torch.float32, partial(self._optimizer_runs, which))

    def step(self, name: str, copy: int = 0) -> float:
        """Return the steps that the optimizer has counted for a parameter; 0 if it does not count."""
        number, fragments = self._place(self._parameter(name))
        states = self._optimizer_states(self._stage[name], copy, fragments[0].data_rank)
        return states.step(number)

    def loss_scaler(self) -> Mapping[str, Any]:
        """Return the fp16 loss scaler's fields, by DeepSpeed's names; empty without one."""
        return self._optimizer_states(0, 0, 0).loss_scaler()

    def client_state(self) -> Mapping[str, Any]:
        """Return the other saved state: counters, random states, the options of that start."""
        return read_mapping(self.folder / state_file(0))

    def _parameter(self, name: str) -> SavedParameter:
        if name not in self.parameters:
            raise CheckpointError(f"{self.folder} has no parameter {name}: it is another model's")
        return self.parameters[name]

    def _gathered(
        self,
        name: str,
        part: Part | None,
        out: Tensor | None,
        copy: int,
        dtype: torch.dtype,
        runs: Callable[[SavedParameter, int, range], Iterator[Run]],
    ) -> Tensor:
        parameter = self._parameter(name)
        wanted = _box_of(parameter, part)
        shape = (wanted.rows, wanted.columns)[: len(parameter.shape)]
        found = torch.empty(shape, dtype=dtype) if out is None else out
        if tuple(found.shape) != shape or not found.is_contiguous():
            raise ValueError(f"{name}: a part of shape {shape} does not fit into {tuple(found.shape)}")
        matrix = found.detach().view(wanted.rows, wanted.columns)
        rows, columns = _as_matrix(rank_shape(parameter, self._cut.tensor))
        for tensor_rank in (copy,) if parameter.split_dim is None else range(self._cut.tensor):
            up = tensor_rank * rows if parameter.split_dim == 0 else 0
            back = tensor_rank * columns if parameter.split_dim == 1 else 0
            own = wanted.moved(-up, -back)
            inside = own.within(Box(0, rows, 0, columns))
            if inside is not None:
                for run in runs(parameter, tensor_rank, range(inside.top * columns, inside.bottom * columns)):
                    fill(matrix, own, run, columns)
        return found

    def _weight_runs(self, parameter: SavedParameter, tensor_rank: int, _elements: range) -> Iterator[Run]:
        size = math.prod(rank_shape(parameter, self._cut.tensor))
        path = self.folder / weights_file(parameter.layer, tensor_rank)
        file: StoredTensors = self._kept(path, lambda: self._weights(path, parameter.layer))
        found = file.contents[parameter.name_in_layer]
        yield Run(file.tensor(found, parameter.name_in_layer, size, self._dtype), 0, 0, size)

    def _weights(self, path: Path, layer: int) -> StoredTensors:
        """Open a layer's file, and check the names and shapes of its parameters."""
        file = StoredTensors(path)
        found = {name: tuple(one.shape) if isinstance(one, Tensor) else () for name, one in file.mapping().items()}
        expected = {
            one.name_in_layer: rank_shape(one, self._cut.tensor)
            for one in self.parameters.values()
            if one.layer == layer
        }
        refuse_difference(path, "shape", found, expected)
        return file

    def _place(self, parameter: SavedParameter) -> tuple[int, list[Fragment]]:
        """Return the number of the parameter's group, and the place of its elements there."""
        name = engine_name(parameter)
        groups = enumerate(self._groups[self._stage[parameter.name]])
        return next((number, group.fragments(name)) for number, group in groups if name in group.places)

    def _optimizer_runs(
        self, which: str, parameter: SavedParameter, tensor_rank: int, elements: range
    ) -> Iterator[Run]:
        number, fragments = self._place(parameter)
        for one in fragments:
            if one.first < elements.stop and one.first + one.elements > elements.start:
                states = self._optimizer_states(self._stage[parameter.name], tensor_rank, one.data_rank)
                yield Run(states.tensor(number, which), one.start, one.first, one.elements)

    def _optimizer_states(self, stage: int, tensor_rank: int, data_rank: int) -> OptimizerStates:
        if not self.has_optimizer:
            raise CheckpointError(f"{self.folder} was saved without optimizer states")
        name = optimizer_file(data_rank, self._cut.model_rank(stage, tensor_rank), self.manifest.precision)
        path = self.folder / name
        return self._kept(path, lambda: OptimizerStates(path, self._groups[stage], data_rank, self.moments))

    def _kept(self, path: Path, opened: Callable[[], T]) -> T:
        """Return a file that is open, or open it and close the one that was not used for longest."""
        if path not in self._open:
            self._open[path] = opened()
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        found: T = self._open[path]
        return found


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns; a vector has one column."""
    return (shape[0], shape[1] if len(shape) == 2 else 1)


def _box_of(parameter: SavedParameter, part: Part | None) -> Box:
    """Return the part as rows and columns. Raises ValueError for steps or more dimensions."""
    given = part or ()
    if len(given) > len(parameter.shape):
        raise ValueError(f"{parameter.name} has {len(parameter.shape)} dimensions, {len(given)} were given")
    bounds = [(0, size) for size in _as_matrix(parameter.shape)]
    for dimension, (one, size) in enumerate(zip(given, parameter.shape, strict=False)):
        start, stop, step = one.indices(size)
        if step != 1:
            raise ValueError(f"{parameter.name}: a part must have no step, got {one}")
        bounds[dimension] = (start, max(start, stop))
    return Box(*bounds[0], *bounds[1])
