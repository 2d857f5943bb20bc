"""Where a start begins: at the latest checkpoint, or at the one that --load-step names or what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.formats.checkpoint.fallback import fall_back
from trainer.formats.checkpoint.history import Change
from trainer.formats.checkpoint.manifest import (
    Found,
    Manifest,
    check_files,
    checkpoint_folders,
    fault_of,
    latest_checkpoint,
    latest_folder,
    read_manifest,
    tag_of,
)
from trainer.formats.checkpoint.reached import latest_reached
from trainer.formats.checkpoint.resumable import begins_anew
from trainer.formats.errors import CheckpointError
from trainer.recipe.option_rules import ramp_errors
from trainer.recipe.options import Options, OptionsError, parse

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
