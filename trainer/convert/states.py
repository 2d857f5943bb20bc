"""What is converted: the states of every parameter as a whole, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from trainer.checkpoint.read import read_data
from trainer.checkpoint.saved_state import Part, SavedState
from trainer.checkpoint.stored_tensors import StoredTensors, unreadable
from trainer.formats.checkpoint.manifest import Manifest, SavedParameter
from trainer.formats.checkpoint.partitions import optimizer_file
from trainer.formats.checkpoint.resumable import NO_OPTIMIZER
from trainer.formats.errors import CheckpointError

# What every data rank's file of optimizer states has of its own.
_OF_ONE_RANK = ("base_optimizer_state", "param_slice_mappings", "single_partition_of_fp32_groups")
_CANNOT_READ = (OSError, EOFError, KeyError, RuntimeError, TypeError, ValueError, AttributeError)


class States(Protocol):
    """A checkpoint's parameters by their names in the model, and what there is of each; `SavedState` is one.

    Everything raises CheckpointError, one line, for what cannot be read.
    """

    @property
    def parameters(self) -> Mapping[str, SavedParameter]:
        """All of them, as wholes, in the model's order."""

    @property
    def moments(self) -> tuple[str, ...]:
        """What the optimizer keeps of each beside `fp32`."""

    def weight(self, name: str, part: Part | None = None) -> Tensor:
        """The part of a parameter (None: the whole), in the model's dtype."""

    def optimizer(self, name: str, which: str, part: Part | None = None) -> Tensor:
        """The part of "fp32" or one of `moments`, fp32."""

    def step(self, name: str) -> float:
        """How many steps the optimizer has counted for it."""

    def common_state(self) -> dict[str, Any]:
        """What DeepSpeed's optimizer says of itself, and `param_groups` as torch's does; empty without an optimizer."""


def counts_steps(states: States) -> bool:
    """Whether the optimizer keeps beside its moments how many steps it has taken: Adam does."""
    return "exp_avg" in states.moments


class NativeStates(SavedState):
    """A checkpoint of any layout of ours."""

    def common_state(self) -> dict[str, Any]:
        """As `States`."""
        if not self.has_optimizer:
            return {}
        path = self.folder / optimizer_file(0, 0, self.manifest.precision)
        states = StoredTensors(path).mapping("optimizer_state_dict")
        groups = states.get("base_optimizer_state", {}).get("param_groups")
        if not isinstance(groups, list):
            raise CheckpointError(f"{path} has no param_groups: it is not what it is called")
        return {**{key: value for key, value in states.items() if key not in _OF_ONE_RANK}, "param_groups": groups}


def refuse_without_states(folder: Path, manifest: Manifest) -> None:
    """Raise CheckpointError for a checkpoint that has nothing to make a universal one of."""
    if manifest.layout.get("optimizer") == NO_OPTIMIZER:
        raise CheckpointError(
            f"{folder} was saved without optimizer states (--no-save-optim), and a universal checkpoint is made of "
            "them: convert one that has them"
        )


def refuse_unsharded(folder: Path, manifest: Manifest) -> None:
    """Raise CheckpointError for a checkpoint whose optimizer states are in no files of their own."""
    if manifest.layout.get("zero_stage") == 0 and manifest.layout.get("optimizer") != NO_OPTIMIZER:
        raise CheckpointError(
            f"{folder} was saved with --zero-stage 0, which has no files of optimizer states that could be converted: "
            "convert one that was saved with --zero-stage 1"
        )


def read_whole(path: Path) -> Any:
    """A small file of torch's, with its tensors. Raises CheckpointError."""
    try:
        return read_data(str(path), "cpu")
    except _CANNOT_READ as error:
        raise unreadable(path, error) from None
