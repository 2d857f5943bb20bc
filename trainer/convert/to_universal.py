"""From a checkpoint of any layout to DeepSpeed's universal one, a parameter at a time in each worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from trainer.checkpoint.optimizer_states import MASTER
from trainer.checkpoint.write import write
from trainer.convert.output import being_written
from trainer.convert.states import NativeStates, counts_steps, read_whole
from trainer.convert.workers import adding_up, each
from trainer.core.files import write_atomically
from trainer.data.progress import Progress
from trainer.formats.checkpoint.manifest import Manifest, SavedFile, SavedParameter
from trainer.formats.checkpoint.partitions import Cut, engine_name, state_file
from trainer.formats.checkpoint.universal import (
    CAT_DIM,
    COMMON_STATE,
    INFO,
    LATEST_UNIVERSAL,
    PARAM,
    STEP,
    UNIVERSAL_MANIFEST,
    VOCABULARY_TENSOR,
    ZERO,
    universal_checkpoint_info,
)
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_file_text

# All states are fp32. What is around the tensor in a file, and one of the files with a training's options.
_BYTES, _AROUND_BYTES, _STATE_BYTES = 4, 1 << 11, 1 << 16

Files = dict[str, SavedFile]


def universal_bytes(state: NativeStates) -> int:
    """What a universal checkpoint of these states takes on disk, and a little more."""
    elements = sum(math.prod(one.shape) for one in state.parameters.values())
    kinds = 1 + len(state.moments)
    return kinds * elements * _BYTES + len(state.parameters) * (kinds + 1) * _AROUND_BYTES + _STATE_BYTES


def write_universal(state: NativeStates, target: Path, manifest: Manifest, workers: int) -> Manifest:
    """Write the states to the new folder `target` and point DeepSpeed at it; returns the manifest with its files.

    manifest: what the universal checkpoint shall say of its training. Raises CheckpointError, one line; nothing is left
    then. In each worker one state of one parameter is in memory at a time.
    """
    largest_first = sorted(state.parameters.values(), key=lambda one: math.prod(one.shape), reverse=True)
    sizes = [math.prod(one.shape) for one in largest_first]
    with being_written(target, universal_bytes(state)) as folder:
        with Progress("converting", sum(sizes)) as progress:
            written = each(
                largest_first, partial(_write_parameter, state, folder), workers, adding_up(sizes, progress.reached)
            )
        files = _write_what_is_common(state, folder)
        for one in written:
            files |= one
        whole = msgspec.structs.replace(manifest, files=files)
        write_atomically(folder / UNIVERSAL_MANIFEST, json_file_text(whole.as_json()))
    write_atomically(target.parent / LATEST_UNIVERSAL, target.name)
    return whole


def _write_parameter(state: NativeStates, folder: Path, parameter: SavedParameter) -> Files:
    """All files of one parameter, by their names in the folder."""
    within = Path(ZERO) / engine_name(parameter)
    contents: dict[str, Callable[[], Any]] = {
        f"{which}.pt": partial(_content, state, parameter, which) for which in (MASTER, *state.moments)
    }
    if counts_steps(state):
        contents[f"{STEP}.pt"] = lambda: torch.tensor(state.step(parameter.name))
    return _named(within, write(contents, folder / within, durably=False))


def _content(state: NativeStates, parameter: SavedParameter, which: str) -> dict[str, Any]:
    """One state of a parameter as DeepSpeed's loader wants it, without the rows that are padding."""
    rows, about = None, {}
    if parameter.split_dim is not None:
        about[CAT_DIM] = parameter.split_dim
    if parameter.token_rows is not None:
        about[VOCABULARY_TENSOR] = True
        rows = (slice(0, parameter.token_rows),)
    return {**about, PARAM: state.optimizer(parameter.name, which, rows)}


def _write_what_is_common(state: NativeStates, folder: Path) -> Files:
    """The files of the engine and of the training: a copy of each, and what all parameters have in common."""
    common = state.common_state()
    # DeepSpeed's own conversion takes the padding away and says so.
    common["group_paddings"] = [0] * len(common["group_paddings"])
    files = _named(Path(ZERO), write({COMMON_STATE: lambda: common}, folder / ZERO))
    cut = Cut.of(state.manifest.layout)
    names = [state_file(rank) for rank in range(cut.tensor * cut.pipeline)]
    info = universal_checkpoint_info(state.manifest.model)
    return files | write({name: partial(_with_info, state.folder / name, info) for name in names}, folder)


def _with_info(path: Path, info: Mapping[str, Any]) -> dict[str, Any]:
    """A file of the engine's and the training's, which says how to put the parameters together; older ones do not."""
    found = read_whole(path)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is not what it is called")
    return {**found, INFO: dict(info)}


def _named(within: Path, files: Mapping[str, SavedFile]) -> Files:
    return {str(within / name): file for name, file in files.items()}
