"""The choice of the checkpoint from which a training starts, and the checks of what it may load from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trainer.core.files import read_plain
from trainer.formats.checkpoint.history import Change
from trainer.formats.checkpoint.manifest import (
    LARGEST_MANIFEST_BYTES,
    MANIFEST,
    Found,
    Manifest,
    check_files,
    checkpoint_folders,
    fault_of,
    is_sound,
    iteration_of,
    latest_checkpoint,
    latest_folder,
    named_by_latest,
    read_manifest,
    start_fault_of,
    tag_of,
)
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_file_text
from trainer.formats.tolerant import decode
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.option_rules import ramp_errors
from trainer.recipe.options import Options, OptionsError, parse

if TYPE_CHECKING:
    from trainer.formats.checkpoint.changes import Identity

OPTION = "--load-fallback"


@dataclass(frozen=True)
class FellBack:
    """A fallback from the damaged latest checkpoint to an earlier one."""

    damaged: Path
    why: str  # a clause
    model: Manifest | None  # the damaged one's manifest, if it can be read
    instead: Found

    @property
    def lost(self) -> int:
        """The number of iterations to train again."""
        return (iteration_of(self.damaged.name) or 0) - self.instead.manifest.iteration

    @property
    def change(self) -> Change:
        """The change to record in the history of later checkpoints."""
        return Change("latest_checkpoint", self.damaged.name, self.instead.folder.name)

    def message(self) -> str:
        """Return the fallback as one line for the log."""
        return (
            f"{OPTION}: {self.damaged.name} is damaged ({self.why}): resuming from {self.instead.folder.name}, "
            f"{self.lost} iterations are trained again"
        )


def fall_back(root: Path, damaged: Mapping[str, str]) -> FellBack | None:
    """Return the newest complete checkpoint before the latest of `root` if the latest is damaged; None if it is not.

    damaged: checkpoint name -> damage that reading its contents has found. Raises CheckpointError if the latest is
    unknown, and if no earlier one is complete.
    """

    def fault(folder: Path) -> str | None:
        return damaged.get(folder.name) or start_fault_of(folder)

    latest = latest_folder(root)
    reached = iteration_of(latest.name) if latest else None
    why = fault(latest) if latest else None
    if latest is None or reached is None or why is None:
        return None
    earlier = [one for one in checkpoint_folders(root) if (iteration_of(one.name) or 0) < reached]
    instead = next((one for one in earlier if one.name not in damaged and is_sound(one)), None)
    if instead is None:
        raise CheckpointError(f"{why}; {OPTION} finds no complete checkpoint before {latest.name} in {root}")
    return FellBack(latest, why, _manifest(latest), Found(instead, read_manifest(instead)))


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except CheckpointError:
        return None


#: In a manifest, the optimizer of a checkpoint without optimizer states.
NO_OPTIMIZER = "none"
#: In a checkpoint's history, the start from a published model.
IMPORTED = "imported"

# The schedule's fields, with Megatron's names in its errors.
_SCHEDULE_NAMES = {
    "max_lr": "learning rate",
    "min_lr": "minimum learning rate",
    "warmup_samples": "warmup iterations",
    "decay_samples": "total number of iterations",
    "style": "decay style",
    "wsd_decay_samples": "WSD decay iterations",
    "wsd_decay_style": "WSD decay style",
}


def uses_weights_only(manifest: Manifest, options: Mapping[str, Any]) -> bool:
    """Return True if a training uses only a checkpoint's weights and begins at iteration 0.

    That is the case with --finetune and with an imported model. With an imported model later tasks of the chain load
    the training's own checkpoints, which --finetune would start from iteration 0 each time.
    """
    return bool(options["finetune"]) or is_imported(manifest)


def is_imported(manifest: Manifest) -> bool:
    """Return True if a checkpoint is an imported model on which no step was trained."""
    return manifest.iteration == 0 and bool(manifest.history) and manifest.history[-1].kind == IMPORTED


def schedule_to_resume_with(
    folder: Path, manifest: Manifest, identity: Identity, given: LearningRateSchedule, options: Mapping[str, Any]
) -> LearningRateSchedule:
    """Return the schedule for resuming the training that `options` describe.

    Raises CheckpointError, one line, for the first difference that makes the checkpoint another training's.
    """
    weights_only = uses_weights_only(manifest, options)
    with_optimizer = not (options["no_load_optim"] or weights_only)
    refuse_other_model(folder, manifest, identity.model)
    refuse_other_layout(folder, manifest, identity.layout, identity.precision, with_optimizer)
    if not options["finetune"]:
        # `opsctl status` reads a start too, and must not import this.
        from trainer.formats.checkpoint.changes import refuse_other_training

        refuse_other_training(folder, manifest, identity.training, options["allow_changed"] or ())
    if weights_only:
        return given
    override, use_checkpoint = options["override_lr_scheduler"], options["use_checkpoint_lr_scheduler"]
    return schedule_to_use(folder, manifest, given, override, use_checkpoint)


def is_whole_state_of(manifest: Manifest, identity: Identity) -> bool:
    """Return True if a checkpoint has this model's weights and this optimizer's states, in its precision."""
    try:
        refuse_other_model(Path(), manifest, identity.model)
        refuse_other_layout(Path(), manifest, identity.layout, identity.precision, with_optimizer=True)
    except CheckpointError:
        return False
    return True


def refuse_other_model(folder: Path, manifest: Manifest, model: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the checkpoint has another model. The error names the option and both values."""
    for name in (*model, *(name for name in manifest.model if name not in model)):
        stored, value = manifest.model.get(name), model.get(name)
        if name == "vocab_size" and stored is None:  # schema 1 has only the padded size
            continue
        if name == "padded_vocab_size" and manifest.model.get("vocab_size") == model.get("vocab_size") is not None:
            continue  # the layout removes or adds padding
        if stored != value:
            raise CheckpointError(
                f"{folder}: {name} value from checkpoint ({stored}) is not equal to the input argument "
                f"value ({value}): {_way_to(name, stored)}, or use another --load"
            )


def _way_to(name: str, stored: Any) -> str:
    """Return the option that makes a fact of the model equal to the checkpoint's."""
    option = "--pad-vocab-size-to" if name == "padded_vocab_size" else f"--{name.replace('_', '-')}"
    if isinstance(stored, bool) or stored is None:
        return f"give {option}" if stored else f"leave {option} out"
    return f"give {option} {stored}"


def refuse_other_layout(
    folder: Path, manifest: Manifest, layout: Mapping[str, Any], precision: str, with_optimizer: bool
) -> None:
    """Raise CheckpointError if the optimizer states do not fit. How ranks share them does not matter."""
    if not with_optimizer:
        return
    if manifest.precision != precision:
        raise CheckpointError(
            f"{folder} was saved in {manifest.precision}, this training is in {precision}: "
            f"give {'neither --bf16 nor --fp16' if manifest.precision == 'fp32' else '--' + manifest.precision}, "
            "or --finetune"
        )
    if manifest.layout.get("optimizer") == NO_OPTIMIZER:
        raise CheckpointError(f"{folder} was saved without optimizer states (--no-save-optim): give --no-load-optim")
    if manifest.layout.get("optimizer") != layout["optimizer"]:
        raise CheckpointError(
            f"{folder} was saved with --optimizer {manifest.layout.get('optimizer')}, this training has "
            f"{layout['optimizer']}: give the checkpoint's, or --no-load-optim"
        )


def schedule_to_use(
    folder: Path, manifest: Manifest, given: LearningRateSchedule, override: bool, use_checkpoint: bool
) -> LearningRateSchedule:
    """Return the schedule to resume with.

    Raises CheckpointError with every changed value, unless an option decides which side counts.
    """
    if override:
        return given
    stored, facts = manifest.learning_rate, given.facts()
    if use_checkpoint:
        return LearningRateSchedule.of_facts({name: stored[name] for name in _SCHEDULE_NAMES if name in stored})
    changed = [
        f"{_SCHEDULE_NAMES.get(name, name)} {stored.get(name)} -> {facts.get(name)}"
        for name in {**facts, **stored}
        if stored.get(name) != facts.get(name)
    ]
    if changed:
        raise CheckpointError(
            f"{folder}: the learning rate schedule changed ({', '.join(changed)}): give --override-lr-scheduler "
            "to take the new one or --use-checkpoint-lr-scheduler to keep the checkpoint's"
        )
    return given


#: In a checkpoint's history, the start at a named checkpoint.
LOAD_STEP = "load_step"


def named_checkpoint(root: Path, iteration: int) -> Found:
    """Return `global_stepN` of `root`, with its files checked. Raises CheckpointError with the available ones."""
    folder = root / tag_of(iteration)
    if not folder.is_dir():
        there = ", ".join(one.name for one in checkpoint_folders(root) if fault_of(one) is None)
        raise CheckpointError(
            f"--load-step {iteration}: there is no {folder.name} in {root}; complete ones: {there or 'none'}"
        )
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    return Found(folder, manifest)


def resumed_from(save: Path, iteration: int) -> Found | None:
    """Return the latest checkpoint of `save` if its training started at --load-step `iteration`; None otherwise.

    The tasks of a chain share their options: the second one resumes from what the first has saved since the named
    checkpoint. Raises CheckpointError.
    """
    found = latest_checkpoint(save)
    if found is None or found.manifest.iteration <= iteration:
        return None
    began = [change for start in found.manifest.history for change in start.changes if change.name == LOAD_STEP]
    return found if began and began[-1].now == iteration else None


def found_at_step(options: Mapping[str, Any]) -> Found:
    """Return the checkpoint of --load-step, or the latest one that was trained from it.

    Raises CheckpointError, also if a later checkpoint that was not trained from it would be overwritten.
    """
    root, step = Path(options["load"]), options["load_step"]
    since = resumed_from(Path(options["save"]), step) if options["save"] else None
    found = since or named_checkpoint(root, step)
    if options["save"]:
        refuse_later(Path(options["save"]), 0 if options["finetune"] else found.manifest.iteration)
    return found


def found_at_start(options: Mapping[str, Any]) -> Found | None:
    """Return the checkpoint that a start with these options loads, checked by its files' sizes; None without one.

    Raises CheckpointError.
    """
    if not options["load"]:
        return None
    if options["load_step"] is not None:
        return found_at_step(options)
    root = Path(options["load"])
    fell_back = fall_back(root, {}) if options["load_fallback"] else None
    return fell_back.instead if fell_back else latest_checkpoint(root)


def manifest_at_start(options: Mapping[str, Any]) -> Manifest | None:
    """Return the manifest of the checkpoint that is resumed; None at iteration 0. Raises CheckpointError."""
    found = found_at_start(options)
    return None if found is None or uses_weights_only(found.manifest, options) else found.manifest


def step_change(found: Found, options: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return the history's change of a start at a named checkpoint; empty for a start that resumes later ones."""
    is_named = options["load_step"] is not None and found.folder == Path(options["load"]) / tag_of(options["load_step"])
    return (Change(LOAD_STEP, None, options["load_step"]),) if is_named else ()


def refuse_later(save: Path, begins_at: int) -> None:
    """Raise CheckpointError if `save` has a later latest checkpoint than `begins_at`, which a save would replace.

    Also raised if the latest checkpoint is unknown.
    """
    latest = latest_folder(save)
    if latest is not None and read_manifest(latest).iteration > begins_at:
        raise CheckpointError(
            f"--save {save} has {latest.name} already and this training begins at iteration {begins_at}: continue "
            "from there with --load of the same folder and without --finetune or --load-step, or save to another "
            "folder; opsctl checkpoints rollback goes back to an earlier one"
        )


def consumed_at_start(options: Mapping[str, Any]) -> int:
    """Return the samples consumed at the start; 0 at iteration 0, and if unknown: the trainer reports the reason."""
    if not options["load"] or options["finetune"]:
        return 0
    try:
        if options["load_step"] is not None:
            return found_at_step(options).manifest.consumed_train_samples
    except CheckpointError:
        return 0
    found = latest_reached(Path(options["load"]))
    return found[1].consumed_train_samples if found else 0


def parse_to_start(arguments: Sequence[str], world_size: int) -> Options:
    """Parse options as `parse` does, and check the ramp-up from its actual start. Raises OptionsError."""
    options = parse(arguments, world_size, consumed_samples=None)
    errors = ramp_errors(options, world_size, consumed_at_start(options))
    if errors:
        raise OptionsError(errors[0])
    return options


def without_optimizer(manifest: Manifest) -> Manifest:
    """Return the manifest of a checkpoint whose optimizer states are removed, as a save without them writes it."""
    from trainer.formats.checkpoint.partitions import is_optimizer_file  # status needs none of it

    kept = {name: file for name, file in manifest.files.items() if not is_optimizer_file(name)}
    return msgspec.structs.replace(manifest, layout={**manifest.layout, "optimizer": NO_OPTIMIZER}, files=kept)


def manifest_text(manifest: Manifest) -> bytes:
    """Return a manifest as the contents of its file."""
    return json_file_text(manifest.as_json()).encode()


class Reached(msgspec.Struct, frozen=True):
    """The progress of a checkpoint's training: the fields of a manifest that every schema has."""

    iteration: int
    consumed_train_samples: int = 0
    consumed_train_tokens: int = 0
    not_finite: str | None = None


def latest_reached(root: Path) -> tuple[Path, Reached] | None:
    """Return the folder that `root/latest` names and its progress; None if it names no finished checkpoint.

    For programs that only report: other faults of the checkpoint or its schema are not found.
    """
    try:
        folder = named_by_latest(root)
        found = decode(read_plain(folder / MANIFEST, LARGEST_MANIFEST_BYTES), Reached) if folder else None
    except (OSError, CheckpointError):
        return None
    return (folder, found) if folder and found else None


def latest_beyond(root: Path, iteration: int) -> Path | None:
    """Return the folder that `root/latest` names if it is finished and later than `iteration`; None otherwise.

    Code that would make an earlier checkpoint the latest must check this first. Only a recorded rollback goes back.
    """
    found = latest_reached(root)
    return found[0] if found is not None and found[1].iteration > iteration else None
