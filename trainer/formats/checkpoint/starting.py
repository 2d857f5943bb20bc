"""From which checkpoint a training starts, and what it may load from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from trainer.formats.checkpoint.partitions import is_optimizer_file
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_file_text
from trainer.formats.tolerant import decode
from trainer.recipe.learning_rate import ABSENT, LearningRateSchedule
from trainer.recipe.option_rules import ramp_errors
from trainer.recipe.options import Options, OptionsError, parse

if TYPE_CHECKING:
    from trainer.formats.checkpoint.changes import Identity

OPTION = "--load-fallback"


@dataclass(frozen=True)
class FellBack:
    """An earlier checkpoint in the place of the latest."""

    damaged: Path
    why: str  # a clause
    model: Manifest | None  # what the damaged one says of itself, where that can be read
    instead: Found

    @property
    def lost(self) -> int:
        """Iterations that have to be trained again."""
        return (iteration_of(self.damaged.name) or 0) - self.instead.manifest.iteration

    @property
    def change(self) -> Change:
        """For the history of what is saved from now on."""
        return Change("latest_checkpoint", self.damaged.name, self.instead.folder.name)

    def said(self) -> str:
        """One line."""
        return (
            f"{OPTION}: {self.damaged.name} is damaged ({self.why}): going on from {self.instead.folder.name}, "
            f"{self.lost} iterations are trained again"
        )


def fall_back(root: Path, damaged: Mapping[str, str]) -> FellBack | None:
    """The newest complete checkpoint before the latest of `root`, where that one is damaged; None where it is not.

    damaged: name of a checkpoint -> what more than a look at its files has found. Raises CheckpointError where nobody
    can tell which is the latest, and where no earlier one is complete.
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
#: In its history, the start of a model that was published elsewhere.
IMPORTED = "imported"

# The schedule's fields, as Megatron calls them when it refuses.
_SCHEDULE_NAMES = {
    "max_lr": "learning rate",
    "min_lr": "minimum learning rate",
    "warmup_samples": "warmup iterations",
    "decay_samples": "total number of iterations",
    "style": "decay style",
    "wsd_decay_samples": "WSD decay iterations",
    "wsd_decay_style": "WSD decay style",
    "cooldown_at": "cooldown at sample",
    "cooldown_samples": "cooldown samples",
    "cooldown_style": "cooldown style",
}
_COOLDOWN = ("cooldown_at", "cooldown_samples", "cooldown_style")


def begins_anew(manifest: Manifest, options: Mapping[str, Any]) -> bool:
    """Whether of a checkpoint the weights alone count, and the training that loads them is at its very beginning.

    So it is where somebody says it, and with an imported model: every later task of its chain has a checkpoint of the
    training's own, which --finetune would begin anew each time.
    """
    return bool(options["finetune"]) or is_imported(manifest)


def is_imported(manifest: Manifest) -> bool:
    """Whether a checkpoint is a model that came from outside, and no training of ours has made a step from it."""
    return manifest.iteration == 0 and bool(manifest.history) and manifest.history[-1].kind == IMPORTED


def schedule_to_resume_with(
    folder: Path, manifest: Manifest, identity: Identity, given: LearningRateSchedule, options: Mapping[str, Any]
) -> LearningRateSchedule:
    """The schedule with which the training that `options` describe goes on from a checkpoint.

    Raises CheckpointError, one line, for the first thing by which the checkpoint is another training's.
    """
    weights_only = begins_anew(manifest, options)
    with_optimizer = not (options["no_load_optim"] or weights_only)
    refuse_other_model(folder, manifest, identity.model)
    refuse_other_layout(folder, manifest, identity.layout, identity.precision, with_optimizer)
    if not options["finetune"]:
        # `opsctl status` reads a start too, and does not need what this imports.
        from trainer.formats.checkpoint.changes import refuse_other_training

        refuse_other_training(folder, manifest, identity.training, options["allow_changed"] or ())
    if weights_only:
        return given
    override, use_checkpoint = options["override_lr_scheduler"], options["use_checkpoint_lr_scheduler"]
    return schedule_to_use(folder, manifest, given, override, use_checkpoint)


def is_whole_state_of(manifest: Manifest, identity: Identity) -> bool:
    """Whether a checkpoint has this model's weights and this optimizer's states, in its precision."""
    try:
        refuse_other_model(Path(), manifest, identity.model)
        refuse_other_layout(Path(), manifest, identity.layout, identity.precision, with_optimizer=True)
    except CheckpointError:
        return False
    return True


def refuse_other_model(folder: Path, manifest: Manifest, model: Mapping[str, Any]) -> None:
    """Raise CheckpointError, naming the option and both values, unless the checkpoint's model is this one."""
    for name in (*model, *(name for name in manifest.model if name not in model)):
        stored, value = manifest.model.get(name), model.get(name)
        if name == "vocab_size" and stored is None:  # of the first schema, which has the padded size alone
            continue
        if name == "padded_vocab_size" and manifest.model.get("vocab_size") == model.get("vocab_size") is not None:
            continue  # padding is cut off or added as the layout needs it
        if stored != value:
            raise CheckpointError(
                f"{folder}: {name} value from checkpoint ({stored}) is not equal to the input argument "
                f"value ({value}): {_way_to(name, stored)}, or another --load"
            )


def _way_to(name: str, stored: Any) -> str:
    """What to do on the command line so that a fact of the model is the checkpoint's."""
    option = "--pad-vocab-size-to" if name == "padded_vocab_size" else f"--{name.replace('_', '-')}"
    if isinstance(stored, bool) or stored is None:
        return f"give {option}" if stored else f"leave {option} out"
    return f"give {option} {stored}"


def refuse_other_layout(
    folder: Path, manifest: Manifest, layout: Mapping[str, Any], precision: str, with_optimizer: bool
) -> None:
    """Raise CheckpointError unless the optimizer's states are this training's. How ranks share them is all one."""
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
    """The schedule to go on with. Raises CheckpointError with every changed value unless told which side to believe.

    A cooldown that is to come is no change of what was trained so far, so a checkpoint without one takes it, also where
    the rest of its schedule is kept.
    """
    stored = {**ABSENT, **manifest.learning_rate}
    if override:
        return given
    start = given.cooldown_at if stored["cooldown_at"] is None else None
    if start is not None and manifest.consumed_train_samples > start:
        raise CheckpointError(
            f"{folder} is at sample {manifest.consumed_train_samples}, past --lr-cooldown-at-samples "
            f"{start}, where the learning rate is to come down: give its sample or a later one, or begin "
            "at an earlier checkpoint (--load-step)"
        )
    if use_checkpoint:
        added = {name: getattr(given, name) for name in _COOLDOWN} if start is not None else {}
        return LearningRateSchedule.of_facts({**{name: stored[name] for name in _SCHEDULE_NAMES}, **added})
    changed = [
        f"{_SCHEDULE_NAMES[name]} {stored.get(name)} -> {value}"
        for name, value in asdict(given).items()
        if stored.get(name) != value and not (start is not None and name in _COOLDOWN)
    ]
    if changed:
        raise CheckpointError(
            f"{folder}: the learning rate schedule changed ({', '.join(changed)}): give --override-lr-scheduler "
            "to take the new one or --use-checkpoint-lr-scheduler to keep the checkpoint's"
        )
    return given


#: What a history calls a start at a checkpoint that was named.
LOAD_STEP = "load_step"


def named_checkpoint(root: Path, iteration: int) -> Found:
    """`global_stepN` of `root`, its files checked. Raises CheckpointError, naming what there is instead."""
    folder = root / tag_of(iteration)
    if not folder.is_dir():
        there = ", ".join(one.name for one in checkpoint_folders(root) if fault_of(one) is None)
        raise CheckpointError(
            f"--load-step {iteration}: there is no {folder.name} in {root}; complete there: {there or 'none'}"
        )
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    return Found(folder, manifest)


def went_on_from(save: Path, iteration: int) -> Found | None:
    """The latest checkpoint of `save` where some start on its way was at --load-step `iteration`; None without.

    The tasks of one chain share their options: the second goes on with what the first has made of the named one.
    Raises CheckpointError.
    """
    found = latest_checkpoint(save)
    if found is None or found.manifest.iteration <= iteration:
        return None
    began = [change for start in found.manifest.history for change in start.changes if change.name == LOAD_STEP]
    return found if began and began[-1].now == iteration else None


def found_at_step(options: Mapping[str, Any]) -> Found:
    """What --load-step comes to now: the checkpoint that it names, or what has come of it since.

    Raises CheckpointError, also where a later one that did not come of it would be written over.
    """
    root, step = Path(options["load"]), options["load_step"]
    since = went_on_from(Path(options["save"]), step) if options["save"] else None
    found = since or named_checkpoint(root, step)
    if options["save"]:
        refuse_later(Path(options["save"]), 0 if options["finetune"] else found.manifest.iteration)
    return found


def found_at_start(options: Mapping[str, Any]) -> Found | None:
    """The checkpoint that a start with these options goes on from, by its files' sizes alone; None where there is none.

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
    """That of the checkpoint whose training goes on with these options; None at a beginning. Raises CheckpointError."""
    found = found_at_start(options)
    return None if found is None or begins_anew(found.manifest, options) else found.manifest


def step_change(found: Found, options: Mapping[str, Any]) -> tuple[Change, ...]:
    """What a history keeps of a start at a named checkpoint, and of no start that went on from it."""
    is_named = options["load_step"] is not None and found.folder == Path(options["load"]) / tag_of(options["load_step"])
    return (Change(LOAD_STEP, None, options["load_step"]),) if is_named else ()


def refuse_later(save: Path, begins_at: int) -> None:
    """Raise CheckpointError where `save` has a later latest than a training begins at: its first save would replace it.

    Also where nobody can tell which the latest is.
    """
    latest = latest_folder(save)
    if latest is not None and read_manifest(latest).iteration > begins_at:
        raise CheckpointError(
            f"--save {save} has {latest.name} already and this training begins at iteration {begins_at}: go on "
            "from there with --load of the same folder and without --finetune or --load-step, or save to another "
            "folder; opsctl checkpoints rollback goes back to an earlier one"
        )


def consumed_at_start(options: Mapping[str, Any]) -> int:
    """Samples consumed where the options start; 0 at a beginning, and where nobody can tell: the trainer says why."""
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
    """As `parse`, with the ramp-up checked from where it starts on. Raises OptionsError."""
    options = parse(arguments, world_size, consumed_samples=None)
    errors = ramp_errors(options, world_size, consumed_at_start(options))
    if errors:
        raise OptionsError(errors[0])
    return options


def without_optimizer(manifest: Manifest) -> Manifest:
    """The manifest of what is left of a checkpoint without optimizer states, which says so as a save without does."""
    kept = {name: file for name, file in manifest.files.items() if not is_optimizer_file(name)}
    return msgspec.structs.replace(manifest, layout={**manifest.layout, "optimizer": NO_OPTIMIZER}, files=kept)


def manifest_text(manifest: Manifest) -> bytes:
    """A manifest as the file that it is."""
    return json_file_text(manifest.as_json()).encode()


class Reached(msgspec.Struct, frozen=True):
    """How far a checkpoint's training had come: as much of a manifest as no schema will be without."""

    iteration: int
    consumed_train_samples: int = 0
    consumed_train_tokens: int = 0
    not_finite: str | None = None


def latest_reached(root: Path) -> tuple[Path, Reached] | None:
    """The folder that `root/latest` names and how far it is, None when it names none that was finished.

    For who only looks: whatever else is wrong with the checkpoint, or with its schema, is not found here.
    """
    try:
        folder = named_by_latest(root)
        found = decode(read_plain(folder / MANIFEST, LARGEST_MANIFEST_BYTES), Reached) if folder else None
    except (OSError, CheckpointError):
        return None
    return (folder, found) if folder and found else None


def latest_beyond(root: Path, iteration: int) -> Path | None:
    """The folder that `root/latest` names, if it is finished and later than `iteration`; None without.

    Whatever would make an earlier one the latest has to ask: only a rollback on record goes back.
    """
    found = latest_reached(root)
    return found[0] if found is not None and found[1].iteration > iteration else None
