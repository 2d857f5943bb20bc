"""Conversion between native and universal checkpoints: checks, files, and the history entry."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from trainer.checkpoint.publish import write
from trainer.checkpoint.saved_state import MASTER
from trainer.checkpoint.stored_tensors import read_mapping
from trainer.convert.native import NativeFiles
from trainer.convert.output import being_written, refuse_without_room
from trainer.convert.sources import NativeStates, Source, counts_steps, with_rows
from trainer.convert.workers import adding_up, each
from trainer.core.files import write_atomically
from trainer.data.program import Progress
from trainer.formats.checkpoint.exchanged import ConvertedCheckpoint
from trainer.formats.checkpoint.history import saved_now, started_now
from trainer.formats.checkpoint.manifest import (
    LATEST,
    MANIFEST,
    SCHEMA_VERSION,
    Manifest,
    SavedFile,
    SavedParameter,
    tag_of,
)
from trainer.formats.checkpoint.partitions import (
    CAT_DIM,
    COMMON_STATE,
    INFO,
    LATEST_UNIVERSAL,
    PARAM,
    STEP,
    UNIVERSAL_MANIFEST,
    VOCABULARY_TENSOR,
    ZERO,
    Cut,
    engine_name,
    state_file,
    universal_checkpoint_info,
)
from trainer.formats.checkpoint.starting import NO_OPTIMIZER
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_file_text
from trainer.recipe.layout import BY_BLOCK, stage_sizes


def write_native(files: NativeFiles, root: Path, manifest: Manifest, workers: int) -> Manifest:
    """Write the checkpoint and `latest` to `root`; return the manifest with its files.

    Raises CheckpointError, one line, and removes all files then.
    """
    try:
        tasks, size_bytes = files.tasks(), files.size_bytes()
    except ValueError as error:
        raise CheckpointError(f"{error}: choose another layout") from None
    sizes = [size for size, _ in tasks]
    existed = root.exists()
    try:
        with being_written(root / tag_of(manifest.iteration), size_bytes) as folder:
            with Progress("converting", sum(sizes)) as progress:
                done = adding_up(sizes, progress.reached)
                written = each([task for _, task in tasks], lambda task: task(folder), workers, done)
            named = {name: file for one in written for name, file in one.items()}
            whole = msgspec.structs.replace(manifest, files=named)
            write_atomically(folder / MANIFEST, json_file_text(whole.as_json()))
    finally:
        if not existed:
            with contextlib.suppress(OSError):  # it is not empty
                root.rmdir()
    write_atomically(root / LATEST, tag_of(manifest.iteration))
    return whole


# All states are fp32. Then the bytes around a tensor, and one of the files with a training's options.
_BYTES, _AROUND_BYTES, _STATE_BYTES = 4, 1 << 11, 1 << 16

Files = dict[str, SavedFile]


def universal_bytes(state: NativeStates) -> int:
    """Return the size of a universal checkpoint of these states on disk, with a small reserve."""
    elements = sum(math.prod(one.shape) for one in state.parameters.values())
    kinds = 1 + len(state.moments)
    return kinds * elements * _BYTES + len(state.parameters) * (kinds + 1) * _AROUND_BYTES + _STATE_BYTES


def write_universal(state: NativeStates, target: Path, manifest: Manifest, workers: int) -> Manifest:
    """Write the states to the new folder `target` with `latest_universal`; return the manifest with its files.

    manifest: of the training. In each worker one state of one parameter is in memory at a time. Raises
    CheckpointError, one line, and removes all files then.
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
    """Write all files of one parameter; return them by name."""
    within = Path(ZERO) / engine_name(parameter)
    contents: dict[str, Callable[[], Any]] = {
        f"{which}.pt": partial(_content, state, parameter, which) for which in (MASTER, *state.moments)
    }
    if counts_steps(state):
        contents[f"{STEP}.pt"] = lambda: torch.tensor(state.step(parameter.name))
    return _named(within, write(contents, folder / within, durably=False))


def _content(state: NativeStates, parameter: SavedParameter, which: str) -> dict[str, Any]:
    """Return one state of a parameter as DeepSpeed's loader expects it, without padding rows."""
    rows, about = None, {}
    if parameter.split_dim is not None:
        about[CAT_DIM] = parameter.split_dim
    if parameter.token_rows is not None:
        about[VOCABULARY_TENSOR] = True
        rows = (slice(0, parameter.token_rows),)
    return {**about, PARAM: state.optimizer(parameter.name, which, rows)}


def _write_what_is_common(state: NativeStates, folder: Path) -> Files:
    """Write the files of the engine and the training, and the states that all parameters share."""
    common = state.common_state()
    # DeepSpeed's own conversion removes the padding and records that.
    common["group_paddings"] = [0] * len(common["group_paddings"])
    files = _named(Path(ZERO), write({COMMON_STATE: lambda: common}, folder / ZERO))
    cut = Cut.of(state.manifest.layout)
    names = [state_file(rank) for rank in range(cut.tensor * cut.pipeline)]
    info = universal_checkpoint_info(state.manifest.model)
    return files | write({name: partial(_with_info, state.folder / name, info) for name in names}, folder)


def _with_info(path: Path, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's file with the patterns for merging parameters, which older files lack."""
    return {**read_mapping(path), INFO: dict(info)}


def _named(within: Path, files: Mapping[str, SavedFile]) -> Files:
    return {str(within / name): file for name, file in files.items()}


UNIVERSAL, NATIVE = "universal", "native"


def to_universal(source: Source, output: Path, workers: int, dry_run: bool = False) -> ConvertedCheckpoint:
    """Write the checkpoint in DeepSpeed's universal format to the new folder `output`. Raises CheckpointError."""
    if source.is_universal or not isinstance(source.states, NativeStates):
        raise CheckpointError(f"{source.folder} is a universal checkpoint already: convert it --to {NATIVE}")
    if source.manifest.layout.get("optimizer") == NO_OPTIMIZER:
        raise CheckpointError(
            f"{source.folder} was saved without optimizer states (--no-save-optim), which a universal checkpoint "
            "needs: convert one that has them"
        )
    manifest = _remembered(source.manifest, source)
    needed = universal_bytes(source.states)
    if dry_run:
        refuse_without_room(output.absolute().parent, needed)
    else:
        manifest = write_universal(source.states, output, manifest, workers)
    return _converted(UNIVERSAL, source, manifest, output, needed, dry_run)


def to_native(
    source: Source, layout: Mapping[str, int], output: Path, workers: int, dry_run: bool = False
) -> ConvertedCheckpoint:
    """Write the checkpoint for `layout` (tensor, pipeline, data) to the new folder `output`, as its latest.

    Raises CheckpointError.
    """
    layout_facts = _layout_facts(source.manifest, layout)
    manifest = _remembered(msgspec.structs.replace(with_rows(source, layout["tensor"]), layout=layout_facts), source)
    files = NativeFiles(
        states=source.states,
        parameters=manifest.parameters,
        cut=Cut.of(manifest.layout),
        precision=manifest.precision,
        client_state=lambda rank: _client_state(source, manifest, rank),
    )
    try:
        needed = files.size_bytes()
    except ValueError as error:
        raise CheckpointError(f"{source.folder}: {error}: choose another layout") from None
    if dry_run:
        refuse_without_room(output.absolute().parent, needed)
    else:
        manifest = write_native(files, output, manifest, workers)
    return _converted(NATIVE, source, manifest, output, needed, dry_run)


def _layout_facts(manifest: Manifest, layout: Mapping[str, int]) -> dict[str, int | str]:
    """Return a manifest's `layout` with these sizes."""
    method = str(manifest.layout.get("partition_method") or BY_BLOCK)
    if stage_sizes(method) and layout["pipeline"] != manifest.layout["pipeline"]:
        method = BY_BLOCK
    return {**manifest.layout, **layout, "world_size": math.prod(layout.values()), "partition_method": method}


def _client_state(source: Source, manifest: Manifest, model_rank: int) -> dict[str, Any]:
    """Return the other state of a model rank, adapted to the new layout and vocabulary."""
    layout, model = manifest.layout, manifest.model
    same = layout["tensor"] * layout["pipeline"] == source.model_ranks  # type: ignore[operator]
    state = source.client_state(model_rank if same else 0)
    if isinstance(state.get("args"), Mapping):
        sizes = {f"{part}_model_parallel_size": layout[part] for part in ("tensor", "pipeline")}
        state["args"] = {**state["args"], **sizes}
    info = state.get("checkpoint_info")
    if isinstance(info, Mapping):
        state["checkpoint_info"] = {**info, "padded_vocab_size": model["padded_vocab_size"]}
    if INFO in state:
        state[INFO] = universal_checkpoint_info(model)
    return state


def _remembered(manifest: Manifest, source: Source) -> Manifest:
    """Return the manifest with this conversion at the end of its history."""
    start = started_now(
        kind="converted",
        iteration=manifest.iteration,
        loaded_from=str(source.folder.absolute()),
        layout=source.manifest.layout,
    )
    return msgspec.structs.replace(
        manifest, schema_version=SCHEMA_VERSION, saved=saved_now(), history=(*manifest.history, start)
    )


def _converted(
    to: str, source: Source, manifest: Manifest, output: Path, needed: int, dry_run: bool
) -> ConvertedCheckpoint:
    return ConvertedCheckpoint(
        to=to,
        source=str(source.folder.absolute()),
        output=str(output.absolute()),
        iteration=manifest.iteration,
        consumed_train_samples=manifest.consumed_train_samples,
        precision=manifest.precision,
        layout=manifest.layout,
        parameters=sum(math.prod(one.shape) for one in manifest.parameters),
        files=0 if dry_run else len(manifest.files),
        bytes=needed if dry_run else sum(file.bytes for file in manifest.files.values()),
        dry_run=dry_run,
    )
