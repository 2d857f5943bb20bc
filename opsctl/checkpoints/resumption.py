"""Would the trainer go on from the run's last checkpoint? Asked before a chain waits in the queue to find out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opsctl.runs.load import LoadedRun
from opsctl.runs.trainer_arguments import layout_of, trainer_arguments
from trainer.formats.errors import CheckpointError
from trainer.formats.manifest import latest_folder, read_manifest
from trainer.formats.resumable import Identity, schedule_to_resume_with
from trainer.recipe.options import OptionsError, parse
from trainer.recipe.schedule import LearningRateSchedule
from trainer.recipe.vocabulary import padded_vocab_size


def resumption_problem(expanded: LoadedRun, arguments: Sequence[str] = ()) -> str | None:
    """Why the trainer would refuse the newest checkpoint, in its own words; None when there is none or it would not.

    `arguments` are a chain's one-off trainer arguments. Options that cannot be are left to `check_run` to name.
    """
    world_size = layout_of(expanded).world_size
    try:
        options = parse([*trainer_arguments(expanded), *arguments], world_size)
        schedule = LearningRateSchedule.of(options)
    except (OptionsError, ValueError):
        return None
    if not options.load:
        return None
    try:
        folder = latest_folder(Path(options.load))
        if folder is None:
            return None
        manifest = read_manifest(folder)
        # Without a vocabulary size of its own the tokenizer decides, and only the trainer can ask that.
        padded: int = manifest.model.get("padded_vocab_size", 0)
        if options.vocab_size is not None:
            padded = padded_vocab_size(options.vocab_size, options)
        identity = Identity.of(options, world_size, padded)
        schedule_to_resume_with(folder, manifest, identity, schedule, options)
    except (CheckpointError, ValueError) as error:
        return str(error)
    return None
