"""From one format of checkpoints to another: what is refused, what is written, what it says of its training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from trainer.convert.native import NativeFiles
from trainer.convert.output import refuse_without_room
from trainer.convert.sources import Source, with_rows
from trainer.convert.states import NativeStates, refuse_without_states
from trainer.convert.to_native import write_native
from trainer.convert.to_universal import universal_bytes, write_universal
from trainer.formats.checkpoint.exchanged import ConvertedCheckpoint
from trainer.formats.checkpoint.manifest import SCHEMA_VERSION, Manifest
from trainer.formats.checkpoint.origin import saved_now, started_now
from trainer.formats.checkpoint.partitions import Cut
from trainer.formats.checkpoint.universal import INFO, universal_checkpoint_info
from trainer.formats.errors import CheckpointError
from trainer.recipe.layout import BY_BLOCK

UNIVERSAL, NATIVE = "universal", "native"


def to_universal(source: Source, output: Path, workers: int, dry_run: bool = False) -> ConvertedCheckpoint:
    """Write the checkpoint in DeepSpeed's universal format to the new folder `output`. Raises CheckpointError."""
    if source.is_universal or not isinstance(source.states, NativeStates):
        raise CheckpointError(f"{source.folder} is a universal checkpoint already: convert it --to {NATIVE}")
    refuse_without_states(source.folder, source.manifest)
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
    """Write the checkpoint, cut for `layout` (tensor, pipeline, data), into the new folder `output`, as its latest.

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
        raise CheckpointError(f"{source.folder}: {error}: ask for another layout") from None
    if dry_run:
        refuse_without_room(output.absolute().parent, needed)
    else:
        manifest = write_native(files, output, manifest, workers)
    return _converted(NATIVE, source, manifest, output, needed, dry_run)


def _layout_facts(manifest: Manifest, layout: Mapping[str, int]) -> dict[str, int | str]:
    """A manifest's `layout` with these sizes; states that were not sharded are, as they are written."""
    stage = manifest.layout.get("zero_stage") or 1
    method = manifest.layout.get("partition_method") or BY_BLOCK
    size = math.prod(layout.values())
    return {**manifest.layout, **layout, "world_size": size, "zero_stage": stage, "partition_method": method}


def _client_state(source: Source, manifest: Manifest, model_rank: int) -> dict[str, Any]:
    """What the files of a model rank say beside states, fitted to the new layout and vocabulary."""
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
    """The manifest with this conversion at the end of its history."""
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
