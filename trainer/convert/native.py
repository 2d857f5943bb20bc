"""Writing of a checkpoint in the engine's format, for any layout, from whole parameters' states.

Each worker writes one file at a time, and reads a part of one parameter at a time: a rank's state need not fit into
memory.
"""

from __future__ import annotations

import math
import mmap
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.publish import write
from trainer.checkpoint.saved_state import MASTER, Part
from trainer.checkpoint.stored_tensors import StoredTensors
from trainer.convert.sources import States, counts_steps
from trainer.core.dtypes import DTYPES
from trainer.core.files import create_file
from trainer.formats.checkpoint.manifest import SavedFile, SavedParameter, checksum
from trainer.formats.checkpoint.partitions import (
    Cut,
    FlatGroup,
    engine_name,
    flat_groups,
    optimizer_file,
    rank_shape,
    stages,
    state_file,
    weights_file,
)
from trainer.formats.errors import CheckpointError

_NO_RESERVE = 0x4000  # Linux' MAP_NORESERVE: no memory is reserved for pages that are never touched


class StreamedFile:
    """A file to write, with tensors that take no memory. Elements that are not filled are zero."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, int, Callable[[], Tensor]]] = []
        self._unfilled: set[int] = set()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool = False) -> Tensor:
        """Return a placeholder for a tensor that `fill` describes."""
        size = math.prod(shape) * dtype.itemsize
        memory = mmap.mmap(-1, max(1, size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        found = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)) if size else torch.empty(0, dtype=dtype)
        found = found.view(shape).requires_grad_(requires_grad)
        self._unfilled.add(id(found))
        return found

    def fill(self, tensor: Tensor, first: int, values: Callable[[], Tensor]) -> None:
        """Set the values of `tensor` from element `first` on, in row order. `values` returns its dtype."""
        self._parts.append((tensor, first, values))

    def write(self, contents: Any, target: Path) -> SavedFile:
        """Write `contents` to the new file `target` without fsync, one part at a time.

        Raises OSError, and the errors of `values`.
        """
        os.close(create_file(target))
        with torch.serialization.skip_data():
            torch.save(contents, target)
        places = dict(_places(contents, StoredTensors(target).contents))
        descriptor = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for tensor, place in places.values():
                if id(tensor) not in self._unfilled:
                    _write(descriptor, place, tensor)
            for tensor, first, values in self._parts:
                _write(descriptor, places[id(tensor)][1] + first * tensor.element_size(), values())
        finally:
            os.close(descriptor)
        return SavedFile(target.stat().st_size, checksum(target))


def _places(contents: Any, stored: Any) -> Iterator[tuple[int, tuple[Tensor, int]]]:
    """Yield each tensor in `contents` with its id and its position in the file."""
    if isinstance(contents, Tensor):
        begin = stored.untyped_storage()._checkpoint_offset + stored.storage_offset() * stored.element_size()
        yield id(contents), (contents, begin)
    elif isinstance(contents, Mapping):
        for key, value in contents.items():
            yield from _places(value, stored[key])
    elif isinstance(contents, (list, tuple)):
        for value, beside in zip(contents, stored, strict=True):
            yield from _places(value, beside)


def _write(descriptor: int, place: int, values: Tensor) -> None:
    flat: Any = values.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    left = memoryview(flat)
    while left:
        count = os.pwrite(descriptor, left, place)
        place, left = place + count, left[count:]


#: The elements of a file's tensors, and the function that writes the file into a folder.
Task = tuple[int, Callable[[Path], dict[str, SavedFile]]]


@dataclass(frozen=True)
class NativeFiles:
    """All files of a checkpoint except its manifest.

    parameters: as they are saved; padding rows that `states` lacks are zero. client_state: the other state of a model
    rank's file; the engine's part is adapted to the layout. Raises ValueError if the layout does not fit the model.
    """

    states: States
    parameters: tuple[SavedParameter, ...]
    cut: Cut
    precision: str
    client_state: Callable[[int], Mapping[str, Any]]

    @cached_property
    def _stages(self) -> list[list[SavedParameter]]:
        return stages(self.parameters, self.cut)

    @cached_property
    def _groups(self) -> list[list[FlatGroup]]:
        return [flat_groups(stage, self.cut) for stage in self._stages]

    @cached_property
    def _first_state(self) -> Mapping[str, Any]:
        return self.client_state(0)

    @cached_property
    def _common(self) -> dict[str, Any]:
        return self.states.common_state()

    def tasks(self) -> list[Task]:
        """Return one task per file, the largest first."""
        tensor_ranks, kinds = range(self.cut.tensor), 1 + len(self.states.moments)
        if self.states.moments:
            _ = self._common, self._first_state  # read once, before the fork
        layers: dict[int, list[SavedParameter]] = {}
        for one in self.parameters:
            layers.setdefault(one.layer, []).append(one)
        found: list[Task] = []
        for layer, parameters in layers.items():
            size = sum(math.prod(rank_shape(one, self.cut.tensor)) for one in parameters)
            found += [(size, partial(self._write_weights, parameters, layer, rank)) for rank in tensor_ranks]
        for stage in range(self.cut.pipeline):
            size = sum(group.partition for group in self._groups[stage]) * kinds
            for rank in tensor_ranks:
                found.append((0, partial(self._write_state, stage, rank)))
                if self.states.moments:
                    found += [
                        (size, partial(self._write_optimizer, stage, rank, data)) for data in range(self.cut.data)
                    ]
        return sorted(found, key=lambda task: task[0], reverse=True)

    def size_bytes(self) -> int:
        """Return their size on disk, with a small reserve."""
        around = 1 << 16
        width = DTYPES[self.precision].itemsize
        weights = sum(math.prod(one.shape) for one in self.parameters) * self.cut.tensor * width
        return weights + sum(size * 4 + around for size, _ in self.tasks())

    def _write_weights(
        self, parameters: list[SavedParameter], layer: int, tensor_rank: int, folder: Path
    ) -> dict[str, SavedFile]:
        """Write one tensor rank's weights of a layer."""
        file = StreamedFile()
        contents: OrderedDict[str, Tensor] = OrderedDict()
        for one in parameters:
            held = file.tensor(rank_shape(one, self.cut.tensor), DTYPES[self.precision])
            contents[one.name_in_layer] = held
            file.fill(held, 0, partial(self._read, one, self._rank_part(one, tensor_rank), None))
        name = weights_file(layer, tensor_rank)
        return {name: file.write(contents, folder / name)}

    def _write_state(self, stage: int, tensor_rank: int, folder: Path) -> dict[str, SavedFile]:
        """Write the other state of a stage's tensor rank."""
        groups = (True, False)
        shapes = [
            OrderedDict(
                (engine_name(one), torch.Size(rank_shape(one, self.cut.tensor)))
                for one in self._stages[stage]
                if one.decays == decays
            )
            for decays in groups
        ]
        model_rank = self.cut.model_rank(stage, tensor_rank)
        contents = {
            **self.client_state(model_rank),
            "param_shapes": [one for one in shapes if one],
            "dp_world_size": self.cut.data,
            "mp_world_size": self.cut.tensor * self.cut.pipeline,
            "checkpoint_parallel_dimensions": {"pp_degree": self.cut.pipeline, "tp_degree": self.cut.tensor},
        }
        return write({state_file(model_rank): lambda: contents}, folder)

    def _write_optimizer(self, stage: int, tensor_rank: int, data_rank: int, folder: Path) -> dict[str, SavedFile]:
        """Write one data rank's part of a stage and tensor rank's optimizer states."""
        file, groups = StreamedFile(), self._groups[stage]
        is_bf16 = self.precision == "bf16"
        by_name = {engine_name(one): one for one in self._stages[stage]}
        masters, moving = [], {}
        for number, group in enumerate(groups):
            # BF16_Optimizer keeps the padding of the fp32 weights, ZeRO's does not.
            elements = group.partition if is_bf16 else group.filled(data_rank)
            flat = {MASTER: file.tensor((elements,), torch.float32, requires_grad=True)}
            flat |= {which: file.tensor((group.partition,), torch.float32) for which in self.states.moments}
            for name in group.addresses(data_rank):
                for one in group.fragments(name):
                    if one.data_rank == data_rank:
                        for which, tensor in flat.items():
                            part = (by_name[name], which, tensor_rank, one.first, one.elements)
                            file.fill(tensor, one.start, partial(self._elements, *part))
            masters.append(flat.pop(MASTER))
            first = by_name[next(iter(group.places))].name
            steps = {"step": torch.tensor(self.states.step(first))} if counts_steps(self.states) else {}
            moving[number] = {**steps, **flat}
        contents = self._about_optimizer(stage, data_rank, masters, moving)
        name = optimizer_file(data_rank, self.cut.model_rank(stage, tensor_rank), self.precision)
        return {name: file.write(contents, folder / name)}

    def _elements(self, one: SavedParameter, which: str, tensor_rank: int, first: int, elements: int) -> Tensor:
        """Return elements of a tensor rank's part of a parameter, in row order. Only these rows are read."""
        rows, *columns = self._rank_part(one, tensor_rank)
        width = math.prod(rank_shape(one, self.cut.tensor)[1:])
        top, bottom = first // width, -(-(first + elements) // width)
        part = (slice(rows.start + top, rows.start + bottom), *columns)
        return self._read(one, part, which).reshape(-1)[first - top * width :][:elements]

    def _read(self, one: SavedParameter, part: Part, which: str | None) -> Tensor:
        """Return a part of the weights (None) or optimizer states, with zeros for rows that the states lack."""
        has, rows = self.states.parameters[one.name].shape[0], part[0]
        there = (slice(min(rows.start, has), min(rows.stop, has)), *part[1:])
        states = self.states
        found = states.weight(one.name, there) if which is None else states.optimizer(one.name, which, there)
        beyond = rows.stop - rows.start - found.shape[0]
        return torch.cat((found, found.new_zeros(beyond, *found.shape[1:]))) if beyond else found

    def _rank_part(self, one: SavedParameter, tensor_rank: int) -> Part:
        """Return a tensor rank's part of a parameter."""
        shape = rank_shape(one, self.cut.tensor)
        begins = [tensor_rank * size if dim == one.split_dim else 0 for dim, size in enumerate(shape)]
        return tuple(slice(begin, begin + size) for begin, size in zip(begins, shape, strict=True))

    def _about_optimizer(
        self, stage: int, data_rank: int, masters: list[Tensor], moving: dict[int, dict[str, Tensor]]
    ) -> dict[str, Any]:
        """Return the contents of a file of optimizer states around its tensors, in the engine's order."""
        from deepspeed.utils.tensor_fragment import fragment_address

        groups, common = self._groups[stage], dict(self._common)
        found = common.pop("param_groups")
        if len(found) != len(groups):
            raise CheckpointError(f"the optimizer has {len(found)} groups of parameters, the model {len(groups)}")
        param_groups = []
        for number, (about, group) in enumerate(zip(found, groups, strict=True)):
            names = {"names": list(group.places)} if "names" in about else {}
            param_groups.append({**about, **names, "params": [number]})  # each has one flat parameter
        mappings = [
            OrderedDict(
                (name, fragment_address(numel=elements, start=start))
                for name, (start, elements) in group.addresses(data_rank).items()
            )
            for group in groups
        ]
        states = {
            **common,
            "group_paddings": [self._padding(group, data_rank) for group in groups],
            "param_alignment_paddings": [[0] * len(group.places) for group in groups],
            "partition_count": [self.cut.data] * len(groups),
            "base_optimizer_state": {"state": moving, "param_groups": param_groups},
            "single_partition_of_fp32_groups": masters,
            "param_slice_mappings": mappings,
        }
        order = _BF16_ORDER if self.precision == "bf16" else _ZERO_ORDER
        states = {key: states[key] for key in order if key in states}
        about = {key: value for key, value in self._first_state.items() if key in ("ds_config", "ds_version")}
        return {"optimizer_state_dict": states, **about}

    def _padding(self, group: FlatGroup, data_rank: int) -> int:
        """Return the padding as the engine counts it: BF16_Optimizer attributes all of it to the last rank."""
        if self.precision != "bf16":
            return group.partition - group.filled(data_rank)
        is_last = data_rank == self.cut.data - 1
        return group.partition * self.cut.data - group.elements if is_last else 0


_BF16_ORDER = (
    *("clip_grad", "base_optimizer_state", "single_partition_of_fp32_groups", "group_paddings", "partition_count"),
    *("ds_version", "param_slice_mappings"),
)
_ZERO_ORDER = (
    *("loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad", "base_optimizer_state"),
    *("single_partition_of_fp32_groups", "zero_stage", "group_paddings", "param_alignment_paddings"),
    *("partition_count", "ds_version", "param_slice_mappings"),
)
