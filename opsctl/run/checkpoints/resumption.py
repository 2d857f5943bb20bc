"""Check before a submission if the trainer would resume from the run's last checkpoint."""

from __future__ import annotations

from typing import Any

from opsctl.run.config.expanded import ExpandedRun
from trainer.formats.checkpoint.changes import ALLOW, Identity, sample_order_change
from trainer.formats.checkpoint.manifest import Found
from trainer.formats.checkpoint.starting import found_at_start, schedule_to_resume_with, uses_weights_only
from trainer.formats.data.data_identity import data_facts
from trainer.formats.errors import CheckpointError, DataError
from trainer.recipe.layout import Layout
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.options import Options


def resumption_problem(run: ExpandedRun) -> str | None:
    """Return why the trainer would refuse the newest checkpoint, in its words; None if it would not."""
    if run.file.program is not None:  # it compares its checkpoint with its arguments itself
        return None
    options = run.options
    try:
        found = _to_go_on_from(run)
        if found is None:
            return None
        manifest = found.manifest
        # Without a vocabulary size the tokenizer decides, and only the trainer reads that.
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
    """Return the newest checkpoint's layout and the run's layout; None if they are equal."""
    if run.file.program is not None:
        return None
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
    """Return why the order of samples would differ from the checkpoint's, if that is known here."""
    allowed = options["allow_changed"] or ()
    if uses_weights_only(found.manifest, options) or "sample_order" in allowed:
        return None
    try:
        why = sample_order_change(found.manifest, options)
    except (DataError, OSError):  # not readable on this machine
        return None
    if why is None:
        return None
    return (
        f"{found.folder} is of another training: the order of the samples changes, {why}. Give a length with as "
        f"many passes as the checkpoint's, or {ALLOW} sample_order to continue with the new order"
    )


def _data_seen_from_here(options: Options) -> dict[str, Any]:
    """Return facts of the data's headers and tokenizer files; empty if they are not readable on this machine."""
    try:
        return data_facts(options, read=False)
    except DataError:
        return {}
