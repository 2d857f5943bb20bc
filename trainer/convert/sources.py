"""The sources of a conversion: one of our checkpoints or a universal one, with the states of whole parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

from trainer.checkpoint.saved_state import MASTER, MOMENTS, Part, SavedState
from trainer.checkpoint.stored_tensors import Box, Run, StoredTensors, fill, read_mapping, read_whole
from trainer.core.dtypes import DTYPES
from trainer.formats.checkpoint.changes import Identity
from trainer.formats.checkpoint.history import Progress
from trainer.formats.checkpoint.manifest import (
    LATEST,
    MANIFEST,
    Manifest,
    SavedParameter,
    check_files,
    check_sizes,
    latest_checkpoint,
    read_manifest,
    read_manifest_file,
)
from trainer.formats.checkpoint.partitions import (
    COMMON_STATE,
    LATEST_UNIVERSAL,
    PARAM,
    STEP,
    UNIVERSAL_MANIFEST,
    ZERO,
    Cut,
    engine_name,
    optimizer_file,
    parameters_of,
    saved_parameters,
    state_file,
)
from trainer.formats.errors import CheckpointError
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options

# The part of a file of optimizer states that differs between data ranks.
_OF_ONE_RANK = ("base_optimizer_state", "param_slice_mappings", "single_partition_of_fp32_groups")


class States(Protocol):
    """A checkpoint's parameters by their names in the model, with their states; `SavedState` is one.

    All methods raise CheckpointError, one line, for unreadable data.
    """

    @property
    def parameters(self) -> Mapping[str, SavedParameter]:
        """All of them, whole, in the model's order."""

    @property
    def moments(self) -> tuple[str, ...]:
        """The optimizer's states of each parameter besides `fp32`."""

    def weight(self, name: str, part: Part | None = None) -> Tensor:
        """Return a part of a parameter (None: the whole), in the model's dtype."""

    def optimizer(self, name: str, which: str, part: Part | None = None) -> Tensor:
        """Return a part of "fp32" or one of `moments`, fp32."""

    def step(self, name: str) -> float:
        """Return the steps that the optimizer has counted for it."""

    def common_state(self) -> dict[str, Any]:
        """Return the state of DeepSpeed's optimizer, with torch's `param_groups`; empty without an optimizer."""


def counts_steps(states: States) -> bool:
    """Return True if the optimizer counts steps next to its moments, as Adam does."""
    return "exp_avg" in states.moments


class NativeStates(SavedState):
    """One of our checkpoints, of any layout."""

    def common_state(self) -> dict[str, Any]:
        """As `States`."""
        if not self.has_optimizer:
            return {}
        path = self.folder / optimizer_file(0, 0, self.manifest.precision)
        states = StoredTensors(path).mapping("optimizer_state_dict")
        groups = states.get("base_optimizer_state", {}).get("param_groups")
        if not isinstance(groups, list):
            raise CheckpointError(f"{path} has no param_groups: its contents do not fit its name")
        return {**{key: value for key, value in states.items() if key not in _OF_ONE_RANK}, "param_groups": groups}


# The folder in which DeepSpeed's conversion works, and which it removes at the end.
_FRAGMENTS = "tmp"


class UniversalStates:
    """The states in a universal checkpoint, whose folder does not describe the parameters itself.

    Raises CheckpointError, one line, if a file is missing or has another shape, also in an unfinished one.
    """

    def __init__(self, folder: Path, parameters: Iterable[SavedParameter], precision: str, optimizer: str) -> None:
        self.folder, self._dtype = folder, DTYPES[precision]
        self.parameters: Mapping[str, SavedParameter] = {one.name: one for one in parameters}
        self.moments: tuple[str, ...] = MOMENTS[optimizer]
        for one in self.parameters.values():
            for which in (MASTER, *self.moments, *([STEP] if counts_steps(self) else [])):
                path = self._path(one, which)
                if not path.is_file():
                    raise CheckpointError(f"{path} is missing: {folder} is incomplete, or another model's")

    def weight(self, name: str, part: Part | None = None) -> Tensor:
        """Return the fp32 weights, rounded as the engine rounds them after each step."""
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
            raise CheckpointError(f"{path} contains {value}, which is not a number of steps")
        return float(value)

    def common_state(self) -> dict[str, Any]:
        """As `States`."""
        path = self.folder / ZERO / COMMON_STATE
        found = read_whole(path)
        if not isinstance(found, dict) or not isinstance(found.get("param_groups"), list):
            raise CheckpointError(f"{path} has no param_groups: its contents do not fit its name")
        return found

    def _read(self, parameter: SavedParameter, which: str, part: Part | None, dtype: torch.dtype) -> Tensor:
        """Return the part, with zeros for the padding rows, which are not stored."""
        rows, columns = (*parameter.shape, 1)[:2]
        slices = (*(part or ()), slice(None), slice(None))
        (top, bottom, _), (left, right, _) = slices[0].indices(rows), slices[1].indices(columns)
        wanted = Box(top, bottom, left, right)
        found = torch.zeros(wanted.rows, wanted.columns, dtype=dtype)
        fill(found, wanted, self._stored(parameter, which), columns)
        return found.view((wanted.rows, wanted.columns)[: len(parameter.shape)])

    def _stored(self, parameter: SavedParameter, which: str) -> Run:
        path = self._path(parameter, which)
        shape = (parameter.token_rows or parameter.shape[0], *parameter.shape[1:])  # without padding rows
        file, size = StoredTensors(path), math.prod(shape)
        found = file.mapping().get(PARAM)
        if not isinstance(found, Tensor) or tuple(found.shape) != shape:
            has = tuple(found.shape) if isinstance(found, Tensor) else None
            raise CheckpointError(f"{path} has {PARAM} of shape {has}, the model's is {shape}: it is another model's")
        return Run(file.tensor(found, PARAM, size, torch.float32), 0, 0, size)

    def _path(self, parameter: SavedParameter, which: str) -> Path:
        return self.folder / ZERO / engine_name(parameter) / f"{which}.pt"


def refuse_half_written(folder: Path) -> None:
    """Raise CheckpointError for an unfinished conversion of DeepSpeed's, or a folder that is none."""
    if not (folder / ZERO).is_dir():
        raise CheckpointError(f"{folder} has no folder {ZERO}: it is not a universal checkpoint, or is incomplete")
    if (folder / _FRAGMENTS).exists():
        raise CheckpointError(
            f"{folder} still has the folder {_FRAGMENTS} of DeepSpeed's conversion, so it is incomplete: convert again"
        )
    if not (folder / ZERO / COMMON_STATE).is_file():
        raise CheckpointError(f"{folder / ZERO / COMMON_STATE} is missing: {folder} is incomplete")


# The counters in the training's part of a file, by their names in a manifest.
_COUNTERS = {
    "iteration": "iteration",
    "consumed_train_samples": "consumed_train_samples",
    "consumed_train_tokens": "tokens",
    "consumed_valid_samples": "consumed_valid_samples",
}


@dataclass(frozen=True)
class Source:
    """A checkpoint that can be converted. model_ranks: the number of its `state_file` files."""

    folder: Path
    manifest: Manifest  # of the checkpoint that a universal one was converted from
    states: States
    model_ranks: int
    is_universal: bool

    def client_state(self, model_rank: int) -> dict[str, Any]:
        """Return the other state of the engine and the training on a model rank, or the first one's without one."""
        return read_mapping(self.folder / state_file(model_rank if model_rank < self.model_ranks else 0))


def open_source(folder: Path) -> Source:
    """Open the checkpoint `folder`, or the latest one in it. Raises CheckpointError, one line."""
    if (folder / MANIFEST).exists():
        return _native(folder, read_manifest(folder))
    if (folder / ZERO).exists() or (folder / UNIVERSAL_MANIFEST).exists():
        return _universal(folder)
    if (folder / LATEST).exists():
        found = latest_checkpoint(folder)
        assert found is not None
        return _native(found.folder, found.manifest)
    pointer = folder / LATEST_UNIVERSAL
    if pointer.is_file():
        return _universal(folder / pointer.read_text().strip())
    what = "has neither a native nor a universal checkpoint" if folder.is_dir() else "is not a folder"
    raise CheckpointError(f"{folder} {what}: give the folder global_stepN, or one with a folder {ZERO}")


def _native(folder: Path, manifest: Manifest) -> Source:
    check_files(folder, manifest)
    try:
        cut = Cut.of(manifest.layout)
    except ValueError as error:
        raise CheckpointError(f"{folder / MANIFEST}: {error}") from None
    return Source(folder, manifest, NativeStates(folder, manifest), cut.tensor * cut.pipeline, is_universal=False)


def _universal(folder: Path) -> Source:
    refuse_half_written(folder)
    first = folder / state_file(0)
    if not first.is_file():
        raise CheckpointError(f"{first} is missing: {folder} is incomplete")
    state = read_whole(first)
    ranks = state.get("mp_world_size") if isinstance(state, Mapping) else None
    if not isinstance(ranks, int) or ranks < 1:
        raise CheckpointError(f"{first} lacks the number of such files (mp_world_size)")
    for rank in range(ranks):
        if not (folder / state_file(rank)).is_file():
            raise CheckpointError(f"{folder / state_file(rank)} is missing: {folder} is incomplete")
    manifest = _own_manifest(folder) or _manifest_from(first, state)
    optimizer = str(manifest.layout.get("optimizer"))
    states = UniversalStates(folder, parameters_of(manifest), manifest.precision, optimizer)
    return Source(folder, manifest, states, ranks, is_universal=True)


def _own_manifest(folder: Path) -> Manifest | None:
    """Return the manifest that this trainer wrote next to the states; None if DeepSpeed wrote them."""
    if not (folder / UNIVERSAL_MANIFEST).exists():
        return None
    manifest = read_manifest_file(folder / UNIVERSAL_MANIFEST)
    check_sizes(folder, manifest)
    return manifest


def _manifest_from(path: Path, state: Mapping[str, Any]) -> Manifest:
    """Return a manifest made from the training's part of an engine's file."""
    arguments, sizes = state.get("args"), state.get("checkpoint_info")
    if not isinstance(arguments, Mapping) or not isinstance(sizes, Mapping):
        raise CheckpointError(
            f"{path} has no args and checkpoint_info of this trainer, so its model is unknown: "
            f"convert its source, which has a {MANIFEST}"
        )
    missing = [name for name in _COUNTERS.values() if not isinstance(state.get(name), int)]
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}: its training's progress is unknown")
    try:
        options = Options(dict(arguments))
        vocabulary = Vocabulary(sizes["original_vocab_size"], sizes["padded_vocab_size"])
        ranks = options.tensor_model_parallel_size * options.pipeline_model_parallel_size * state["dp_world_size"]
        identity = Identity.of(options, ranks, vocabulary)
        schedule = LearningRateSchedule.of(options).facts()
    except (KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: its args lack {error}: they are another trainer's") from None
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: its args are invalid: {error}") from None
    counters = {name: state[key] for name, key in _COUNTERS.items()}
    return Manifest(
        **Progress(**counters).counters(),
        precision=identity.precision,
        layout=identity.layout,
        model=identity.model,
        learning_rate=schedule,
        files={},
        parameters=saved_parameters(ModelShape.of_facts(identity.model)),
        training=identity.training,
        settings=identity.settings,
    )


def with_rows(source: Source, tensor: int) -> Manifest:
    """Return the manifest of the same model with the embedding's size for `tensor` ranks.

    Raises CheckpointError if they cannot share it.
    """
    manifest, given = source.manifest, source.client_state(0).get("args")
    rows, tokens = manifest.model["padded_vocab_size"], manifest.model.get("vocab_size")
    if isinstance(given, Mapping) and tokens is not None:
        try:
            rows = Vocabulary.of(tokens, {**given, "tensor_model_parallel_size": tensor}).rows
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{source.folder}: its vocabulary for TP {tensor}: {error}") from None
    model = {**manifest.model, "padded_vocab_size": rows}
    return msgspec.structs.replace(manifest, model=model, parameters=saved_parameters(ModelShape.of_facts(model)))
