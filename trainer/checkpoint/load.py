"""Loading of the latest checkpoint, after checking that it is complete and belongs to this training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.into_engine import fill_loss_scaler, fill_optimizer, fill_weights
from trainer.checkpoint.saved_state import SavedState
from trainer.core.console import say
from trainer.core.files import HeldFolder
from trainer.engine.members import COUNTERS, masters_from_weights
from trainer.formats.checkpoint.manifest import (
    LATEST,
    WAY_OUT,
    Found,
    Manifest,
    check_checksums,
    checkpoint_folders,
    fault_of,
    iteration_of,
    latest_checkpoint,
    read_manifest,
)
from trainer.formats.checkpoint.starting import FellBack, fall_back, found_at_step
from trainer.formats.errors import CheckpointError
from trainer.formats.logs.log_lines import CheckpointLoaded, write_checkpoint_line, write_fresh_start
from trainer.parallel.agreement import Refusal, from_first_rank, on_every_rank


def find_latest(root: Path, with_checksums: bool = True) -> Found | None:
    """Return the checkpoint that `root/latest` names, after checking it; None if there is no checkpoint.

    Collective. Raises Refusal.
    """
    found = from_first_rank(lambda: latest_checkpoint(root), (CheckpointError,))
    if found is None:
        if dist.get_rank() == 0:
            say(write_fresh_start(root / LATEST))
        return None
    if with_checksums:
        _check_checksums(found)
    return found


def find_at_step(options: Mapping[str, Any]) -> Found:
    """Return the checkpoint of --load-step, after checking it. Collective. Raises Refusal."""
    found = from_first_rank(lambda: found_at_step(options), (CheckpointError,))
    if not options["no_verify_checkpoint_checksums"]:
        _check_checksums(found)
    return found


def find_before(folder: HeldFolder, iteration: int, is_wanted: Callable[[Manifest], bool]) -> Found | None:
    """Return the newest sound and wanted checkpoint before that iteration, with its files checked.

    Collective. Raises Refusal.
    """

    def candidates() -> list[str]:
        there = checkpoint_folders(folder.place())
        return [one.name for one in there if (iteration_of(one.name) or 0) < iteration and fault_of(one) is None]

    def looked_over(name: str) -> Found:
        place = folder.place() / name  # the path differs between processes
        return Found(place, read_manifest(place))

    for name in from_first_rank(candidates, (CheckpointError, OSError)):
        try:
            found = on_every_rank(partial(looked_over, name), (CheckpointError, OSError))
            if not is_wanted(found.manifest):  # all ranks have read the same one
                continue
            _check_checksums(found)
        except Refusal:
            continue
        return found
    return None


def find_instead_of_a_damaged_one(root: Path, with_checksums: bool) -> FellBack | None:
    """Return the newest sound checkpoint before the latest of `root` if the latest is damaged; None if it is not.

    Collective. Raises Refusal if there is no such checkpoint.
    """
    damaged: dict[str, str] = {}
    while True:
        fell_back = from_first_rank(lambda: fall_back(root, damaged), (CheckpointError,))
        found = fell_back.instead if fell_back else from_first_rank(lambda: latest_checkpoint(root), (CheckpointError,))
        if found is None or not with_checksums:
            return fell_back
        try:
            _check_checksums(found)
        except Refusal as refusal:
            damaged[found.folder.name] = str(refusal).partition(WAY_OUT)[0]
        else:
            return fell_back


def _check_checksums(found: Found) -> None:
    """Check the files on all ranks, each rank some of them. Raises Refusal."""
    part, parts = dist.get_rank(), dist.get_world_size()
    on_every_rank(lambda: check_checksums(found.folder, found.manifest, part, parts), (CheckpointError, OSError))


def load_checkpoint(
    engine: PipelineEngine,
    found: Found,
    with_optimizer: bool = True,
    weights_only: bool = False,
    said_as: Path | None = None,
) -> Mapping[str, Any]:
    """Load what `find_latest` returned into the engine, from any layout; return the state saved with it.

    with_optimizer: load its moments, step and loss scale; the fp32 weights are always loaded. weights_only: load
    nothing else, and count from 0. said_as: the checkpoint's path, for messages. Settings from options (rate, betas,
    decay, clipping) stay the engine's. Collective. Raises Refusal.
    """

    def fill() -> Mapping[str, Any]:
        state = SavedState(found.folder, found.manifest)
        precision = "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else "fp32"
        fill_weights(engine, state, precision_changes=not weights_only and found.manifest.precision != precision)
        if weights_only or not state.has_optimizer:
            masters_from_weights(engine)
        else:
            fill_optimizer(engine, state, with_moments=with_optimizer)
        if with_optimizer and not weights_only and engine.fp16_enabled():
            fill_loss_scaler(engine, state)
        return {} if weights_only else state.client_state()

    client_state = on_every_rank(fill, (CheckpointError,))
    if not weights_only:
        for counter in COUNTERS:
            setattr(engine, counter, int(client_state.get(counter, 0)))
    if dist.get_rank() == 0:
        say(write_checkpoint_line(CheckpointLoaded(found.manifest.iteration, str(said_as or found.folder.parent))))
    return client_state
