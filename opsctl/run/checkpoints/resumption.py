"""Would the trainer go on from the run's last checkpoint? Asked before a chain waits in the queue to find out."""

from __future__ import annotations

from typing import Any

from opsctl.run.config.expanded import ExpandedRun
from trainer.formats.checkpoint.changes import ALLOW, Identity, shuffled_anew
from trainer.formats.checkpoint.manifest import Found
from trainer.formats.checkpoint.starting import begins_anew, found_at_start, schedule_to_resume_with
from trainer.formats.data.data_identity import data_facts
from trainer.formats.errors import CheckpointError, DataError
from trainer.recipe.layout import Layout
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.options import Options


def resumption_problem(run: ExpandedRun) -> str | None:
    """Why the trainer would refuse the newest checkpoint, in its own words; None when there is none or it would not."""
    options = run.options
    try:
        found = _to_go_on_from(run)
        if found is None:
            return None
        manifest = found.manifest
        # Without a vocabulary size of its own the tokenizer decides, and only the trainer can ask that.
        rows: int = manifest.model.get("padded_vocab_size", 0)
        vocabulary = Vocabulary(manifest.model.get("vocab_size") or rows, rows)
        if options.vocab_size is not None:
            vocabulary = Vocabulary.of(options.vocab_size, options)
        identity = Identity.of(options, run.layout.world_size, vocabulary, _data_seen_from_here(options))
        schedule_to_resume_with(found.folder, manifest, identity, LearningRateSchedule.of(options), options)
    except (CheckpointError, ValueError) as error:
        return str(error)
    return _another_order(found, options)


def layout_change(run: ExpandedRun) -> tuple[str, str] | None:
    """The layout of the newest checkpoint and the one that the run loads it into; None when they are the same."""
    try:
        found = _to_go_on_from(run)
        saved = found.manifest.layout if found else {}
        parts = [int(saved[part]) for part in ("world_size", "tensor", "pipeline", "data")]
    except (CheckpointError, KeyError, ValueError):
        return None
    before, now = str(Layout(*parts)), str(run.layout)
    return (before, now) if before != now else None


def _to_go_on_from(run: ExpandedRun) -> Found | None:
    options, own = run.options, run.paths.checkpoints
    is_elsewhere = options.load_step is not None and options.load != options.save
    return found_at_start(options.replace(load=options.load if is_elsewhere else str(own), save=str(own)))


def _another_order(found: Found, options: Options) -> str | None:
    """Why the trainer would find another order of the samples than the checkpoint's, where that is to be told here."""
    allowed = options["allow_changed"] or ()
    if begins_anew(found.manifest, options) or "sample_order" in allowed:
        return None
    try:
        why = shuffled_anew(found.manifest, options)
    except (DataError, OSError):  # not to be seen on this machine
        return None
    if why is None:
        return None
    return (
        f"{found.folder} is of another training: the order of the samples changes, {why}: give a length that needs as "
        f"many passes as the checkpoint's, or {ALLOW} sample_order to go on with the new order"
    )


def _data_seen_from_here(options: Options) -> dict[str, Any]:
    """What the data's headers and the tokenizer's files say; nothing where they are not to be seen on this machine."""
    try:
        return data_facts(options, read=False)
    except DataError:
        return {}
