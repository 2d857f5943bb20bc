"""From options to what a training goes on from, and to what its checkpoints say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.agreement import Refusal
from trainer.checkpoint.load import Found, find_latest, load_checkpoint
from trainer.checkpoint.random_states import random_states, restore_random_states
from trainer.checkpoint.save import save_checkpoint
from trainer.formats.errors import CheckpointError
from trainer.formats.manifest import Manifest, latest_folder, read_manifest
from trainer.formats.resumable import NO_OPTIMIZER, Identity, schedule_to_resume_with
from trainer.loop.progress import Progress
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
        return self.found.manifest.iteration if self.found else None


def find_resumption(options: Options, identity: Identity, schedule: LearningRateSchedule) -> Resumption:
    """Look at --load, collectively. Raises Refusal when its checkpoint is damaged or another training's."""
    found = find_latest(Path(options.load), options.verify_checkpoint_checksums) if options.load else None
    if found is None:
        return Resumption(None, Progress(), schedule)
    folder, manifest = found.folder, found.manifest
    try:
        schedule = schedule_to_resume_with(folder, manifest, identity, schedule, options)
    except CheckpointError as error:  # every rank has read the same manifest and comes to the same end
        raise Refusal(str(error)) from None
    if options.finetune:
        return Resumption(found, Progress(), schedule)
    progress = Progress(
        manifest.iteration,
        manifest.consumed_train_samples,
        manifest.consumed_train_tokens,
        manifest.consumed_valid_samples,
    )
    return Resumption(found, progress, schedule)


def load_into(engine: PipelineEngine, resumption: Resumption, options: Options) -> None:
    """Load the checkpoint's weights and, unless told not to, optimizer and random states. Collective."""
    if resumption.found is None:
        return
    state = load_checkpoint(engine, resumption.found, not options.no_load_optim, options.finetune)
    if not options.no_load_rng and not options.finetune:
        restore_random_states(state)


def saver(
    engine: PipelineEngine, options: Options, identity: Identity, schedule: LearningRateSchedule
) -> Callable[[Progress], float] | None:
    """What saves a checkpoint into --save and returns its milliseconds; None without --save."""
    if not options.save:
        return None
    root = Path(options.save)
    layout = {**identity.layout, "optimizer": NO_OPTIMIZER} if options.no_save_optim else identity.layout

    def save(progress: Progress) -> float:
        manifest = Manifest(
            **progress.as_json(),
            precision=identity.precision,
            layout=layout,
            model=identity.model,
            learning_rate=asdict(schedule),
            files={},
        )
        state = {
            "checkpoint_version": 3.0,
            "args": dict(options),
            "iteration": progress.iteration,
            "tokens": progress.consumed_train_tokens,
            "consumed_train_samples": progress.consumed_train_samples,
            "consumed_valid_samples": progress.consumed_valid_samples,
            "checkpoint_info": {
                "padded_vocab_size": identity.model["padded_vocab_size"],
                "original_vocab_size": options.vocab_size,
            },
            **({} if options.no_save_rng else random_states()),
        }
        return save_checkpoint(engine, root, manifest, state, with_optimizer=not options.no_save_optim)

    return save


def progress_on_disk(options: Options) -> Progress:
    """The latest checkpoint's counters, for a training that leaves before it loads it; zeros when there is none."""
    try:
        folder = latest_folder(Path(options.load)) if options.load else None
        manifest = read_manifest(folder) if folder else None
    except CheckpointError:
        return Progress()
    if manifest is None:
        return Progress()
    return Progress(manifest.iteration, manifest.consumed_train_samples, manifest.consumed_train_tokens)
