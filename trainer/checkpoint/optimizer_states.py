"""One data rank's file of optimizer states, held to where its parameters must be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.stored_tensors import StoredTensor, StoredTensors
from trainer.formats.checkpoint.partitions import FlatGroup
from trainer.formats.errors import CheckpointError

#: The fp32 weights, among what the optimizer has of a parameter.
MASTER = "fp32"


class OptimizerStates:
    """What the optimizer had of one data rank's partition of each group, with the moments that it keeps.

    Raises CheckpointError, with both values, where the file is of another partition.
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
        """The partition of a group, flat; None stands for zeros."""
        return self._tensors[group][which]

    def step(self, group: int) -> float:
        """Steps that the optimizer has counted for a group."""
        found = self._steps[group]
        if not isinstance(found, Tensor):
            return float(found) if isinstance(found, (int, float)) else 0.0
        value = torch.empty(1)
        self._file.tensor(found, f"step of group {group}", 1, torch.float32).read(0, value)
        if not math.isfinite(value.item()) or value.item() < 0:
            raise CheckpointError(f"{self._path}: the step of group {group} is {value.item()}")
        return value.item()

    def loss_scaler(self) -> Mapping[str, Any]:
        """The fields of DeepSpeed's loss scaler, empty where it has none."""
        scaler = self._states.get("loss_scaler")
        return {} if scaler is None else dict(vars(scaler))

    def _hold_to_partition(self) -> None:
        count = self._states.get("partition_count")
        expected = [group.data for group in self._groups]
        if count != expected:
            raise CheckpointError(
                f"{self._path} is cut for {count} data-parallel ranks, the manifest's layout has {expected}: "
                "it is another checkpoint's"
            )
        mappings = self._states.get("param_slice_mappings")
        if not isinstance(mappings, list) or len(mappings) != len(self._groups):
            raise CheckpointError(f"{self._path} does not say which parameters it has")
        for mapping, group in zip(mappings, self._groups, strict=True):
            found = {name: (one.start, one.numel) for name, one in mapping.items()}
            refuse_difference(self._path, "(start, elements)", found, group.addresses(self._data_rank))


def refuse_difference(path: Path, what: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise CheckpointError, with both values, for the first name of which a file says other than the manifest."""
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            values = f"{what} {found.get(name, 'none')}, the manifest's parameters give {expected.get(name, 'none')}"
            raise CheckpointError(f"{path}: {name} has {values}: one of them is another checkpoint's")
