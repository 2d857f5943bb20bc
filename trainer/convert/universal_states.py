"""A universal checkpoint as parameters, whoever wrote it: ours or DeepSpeed's own conversion."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.optimizer_states import MASTER
from trainer.checkpoint.pieces import Box, Run, fill
from trainer.checkpoint.saved_state import MOMENTS, Part
from trainer.checkpoint.stored_tensors import StoredTensors
from trainer.convert.states import counts_steps, read_whole
from trainer.core.dtypes import DTYPES
from trainer.formats.checkpoint.manifest import SavedParameter
from trainer.formats.checkpoint.partitions import engine_name
from trainer.formats.checkpoint.universal import COMMON_STATE, PARAM, STEP, ZERO
from trainer.formats.errors import CheckpointError

# What DeepSpeed's conversion works in, and removes as it ends.
_FRAGMENTS = "tmp"


class UniversalStates:
    """What a universal checkpoint has of each of the parameters, which its folder itself does not describe.

    Raises CheckpointError, one line, where a file is missing or of another shape: of a half-written one too.
    """

    def __init__(self, folder: Path, parameters: Iterable[SavedParameter], precision: str, optimizer: str) -> None:
        self.folder, self._dtype = folder, DTYPES[precision]
        self.parameters: Mapping[str, SavedParameter] = {one.name: one for one in parameters}
        self.moments: tuple[str, ...] = MOMENTS[optimizer]
        refuse_half_written(folder)
        for one in self.parameters.values():
            for which in (MASTER, *self.moments, *([STEP] if counts_steps(self) else [])):
                path = self._path(one, which)
                if not path.is_file():
                    raise CheckpointError(f"{path} is missing: {folder} is half written, or another model's")

    def weight(self, name: str, part: Part | None = None) -> Tensor:
        """As `States`: the fp32 weights, rounded as the engine rounds them after each step."""
        return self._read(self.parameters[name], MASTER, part, self._dtype)

    def optimizer(self, name: str, which: str, part: Part | None = None) -> Tensor:
        """As `States`."""
        return self._read(self.parameters[name], which, part, torch.float32)

    def step(self, name: str) -> float:
        """As `States`."""
        path = self._path(self.parameters[name], STEP)
        found = read_whole(path)
        value = found.item() if isinstance(found, Tensor) and found.numel() == 1 else found
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise CheckpointError(f"{path} says {value}, which is no number of steps")
        return float(value)

    def common_state(self) -> dict[str, Any]:
        """As `States`."""
        path = self.folder / ZERO / COMMON_STATE
        found = read_whole(path)
        if not isinstance(found, dict) or not isinstance(found.get("param_groups"), list):
            raise CheckpointError(f"{path} has no param_groups: it is not what it is called")
        return found

    def _read(self, parameter: SavedParameter, which: str, part: Part | None, dtype: torch.dtype) -> Tensor:
        """The part, with zeros for the rows of padding, which are not stored."""
        rows, columns = (*parameter.shape, 1)[:2]
        slices = (*(part or ()), slice(None), slice(None))
        (top, bottom, _), (left, right, _) = slices[0].indices(rows), slices[1].indices(columns)
        wanted = Box(top, bottom, left, right)
        found = torch.zeros(wanted.rows, wanted.columns, dtype=dtype)
        fill(found, wanted, self._stored(parameter, which), columns)
        return found.view((wanted.rows, wanted.columns)[: len(parameter.shape)])

    def _stored(self, parameter: SavedParameter, which: str) -> Run:
        path, shape = self._path(parameter, which), _stored_shape(parameter)
        file, size = StoredTensors(path), math.prod(shape)
        found = file.mapping().get(PARAM)
        if not isinstance(found, Tensor) or tuple(found.shape) != shape:
            has = tuple(found.shape) if isinstance(found, Tensor) else None
            raise CheckpointError(f"{path} has {PARAM} of shape {has}, the model's is {shape}: it is another model's")
        return Run(file.tensor(found, PARAM, size, torch.float32), 0, 0, size)

    def _path(self, parameter: SavedParameter, which: str) -> Path:
        return self.folder / ZERO / engine_name(parameter) / f"{which}.pt"


def refuse_half_written(folder: Path) -> None:
    """Raise CheckpointError for what DeepSpeed's conversion has begun and not ended, and for what is none."""
    if not (folder / ZERO).is_dir():
        raise CheckpointError(f"{folder} has no folder {ZERO}: it is no universal checkpoint, or one half written")
    if (folder / _FRAGMENTS).exists():
        raise CheckpointError(
            f"{folder} still has the folder {_FRAGMENTS} that DeepSpeed's conversion works in, so it is half written: "
            "convert again"
        )
    if not (folder / ZERO / COMMON_STATE).is_file():
        raise CheckpointError(f"{folder / ZERO / COMMON_STATE} is missing: {folder} is half written")


def _stored_shape(parameter: SavedParameter) -> tuple[int, ...]:
    """Without the rows that are padding."""
    return (parameter.token_rows or parameter.shape[0], *parameter.shape[1:])
