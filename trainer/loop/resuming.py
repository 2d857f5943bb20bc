"""From options to what a training goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.agreement import Refusal
from trainer.checkpoint.load import find_latest, load_checkpoint
from trainer.checkpoint.random_states import restore_random_states
from trainer.formats.errors import CheckpointError
from trainer.formats.manifest import Found, latest_folder, read_manifest
from trainer.formats.progress import Progress
from trainer.formats.resumable import Identity, schedule_to_resume_with
from trainer.recipe.options import Options
from trainer.recipe.schedule import LearningRateSchedule


@dataclass(frozen=True)
class Resumption:
    """Where a training goes on: at a checkpoint, or, with none, at its very beginning."""

    found: Found | None
    progress: Progress
    schedule: LearningRateSchedule

    @property
    def saved_iteration(self) -> int | None:
        """That of the checkpoint, also when finetuning counts from 0; None at the very beginning."""
        return self.found.manifest.iteration if self.found else None


def find_resumption(options: Options, identity: Identity, schedule: LearningRateSchedule) -> Resumption:
    """Look at --load, collectively. Raises Refusal when its checkpoint is damaged or another training's."""
    found = find_latest(Path(options.load), options.verify_checkpoint_checksums) if options.load else None
    if found is None:
        return Resumption(None, Progress.none(), schedule)
    folder, manifest = found.folder, found.manifest
    try:
        schedule = schedule_to_resume_with(folder, manifest, identity, schedule, options)
    except CheckpointError as error:  # every rank has read the same manifest and comes to the same end
        raise Refusal(str(error)) from None
    if options.finetune:
        return Resumption(found, Progress.none(), schedule)
    return Resumption(found, Progress(**manifest.counters()), schedule)


def load_into(engine: PipelineEngine, resumption: Resumption, options: Options) -> None:
    """Load the checkpoint's weights and, unless told not to, optimizer and random states. Collective."""
    if resumption.found is None:
        return
    state = load_checkpoint(engine, resumption.found, not options.no_load_optim, options.finetune)
    if not options.no_load_rng and not options.finetune:
        restore_random_states(state)


def progress_on_disk(options: Options) -> Progress:
    """The latest checkpoint's counters, for a training that leaves before it loads it; zeros when there is none."""
    try:
        folder = latest_folder(Path(options.load)) if options.load else None
        manifest = read_manifest(folder) if folder else None
    except CheckpointError:
        manifest = None
    return Progress(**manifest.counters()) if manifest else Progress.none()
