"""How far the training is and how it goes: its newest checkpoint, and the end of its log."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from opsctl.core.timestamps import now
from opsctl.monitoring.gather.asked import Asked, changed_at
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.checkpoints.inventory import Length, is_finished, last_checkpoint, latest_problem, length
from opsctl.run.logs import index
from opsctl.run.logs.measurements import recent, recent_and_series
from trainer.formats.checkpoint.manifest import MANIFEST

#: Lines of iterations that the checks look at; all of them are read in some 15 ms.
SERIES_LINES = 1000


def progress(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.PROGRESS."""
    run = asked.run
    problem = run.revision.damage if run.revision else ""
    options, checkpoint = None if problem else run.options, last_checkpoint(run.paths.checkpoints)
    asked_for = length(options, checkpoint) if options else Length(None, None)
    return replace(
        seen,
        revision_problem=problem or None,
        checkpoint=checkpoint,
        checkpoint_problem=latest_problem(run.paths.checkpoints),
        checkpoint_at=changed_at(checkpoint.folder / MANIFEST) if checkpoint else None,
        is_finished=options is not None and is_finished(options, checkpoint),
        total_samples=asked_for.samples,
        total_iterations=asked_for.iterations,
    )


def log(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.LOG and Part.SERIES, from one reading of the log's end."""
    if Part.SERIES in asked.parts:
        measured, series = recent_and_series(asked.paths, SERIES_LINES)
        seen = replace(seen, series=series.iterations, guarded=series.guarded)
    elif Part.LOG in asked.parts:
        measured = recent(asked.paths)
    if Part.LOG not in asked.parts:
        return seen
    return replace(seen, measured=measured, log_written_at=changed_at(asked.paths.main_log), log_read_at=now())


def curve(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.CURVE: what the whole log shows, and its last iteration where more noise came after it than is looked at."""
    found = index.look(asked.paths)
    if seen.measured.last_iteration is None and found.last_line is not None and Part.LOG in asked.parts:
        measured = msgspec.structs.replace(seen.measured, last_iteration=found.last_line, is_followed=True)
        seen = replace(seen, measured=measured)
    return replace(seen, curve=tuple(found.curve.points()), is_curve_whole=found.is_caught_up)
