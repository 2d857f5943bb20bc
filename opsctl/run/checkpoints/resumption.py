"""Check before a submission if the trainer would resume from the run's last checkpoint."""

from __future__ import annotations

from typing import Any

from opsctl.run.config.expanded import ExpandedRun
from trainer.formats.checkpoint.changes import Identity
from trainer.formats.checkpoint.manifest import Found
from trainer.formats.checkpoint.starting import found_at_start, schedule_to_resume_with
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
    return None


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


def _data_seen_from_here(options: Options) -> dict[str, Any]:
    """Return facts of the data's headers and tokenizer files; empty if they are not readable on this machine."""
    try:
        return data_facts(options, read=False)
    except DataError:
        return {}
