"""Parts of a snapshot from the run's files: progress, log, attempts, lease, kill switch, revision, checkpoint files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.monitoring.gather import Asked, changed_at
from opsctl.monitoring.snapshot import FaultyCheckpoint, Part, Published, Snapshot
from opsctl.run.attempts import events as attempts_file
from opsctl.run.attempts.ending import AS_PLANNED, Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import learned_nothing, without_progress
from opsctl.run.checkpoints.inventory import Length, is_finished, last_checkpoint, latest_problem, length
from opsctl.run.logs.measurements import recent, recent_and_series
from opsctl.run.state import kill_switch as kill_switch_file
from opsctl.run.state import lease as lease_file
from opsctl.run.state.chains import CLOCKS_DIFFER, Cancel, last_word, read_cancels, resting
from opsctl.run.state.kill_switch import Deactivation, read_deactivations
from opsctl.run.state.revisions import differs_from_published
from trainer.formats.checkpoint.manifest import MANIFEST, TEMPORARY, checkpoint_folders, fault_of, latest_folder
from trainer.formats.errors import CheckpointError

#: Lines of iterations that the checks look at; all of them are read in some 15 ms.
SERIES_LINES = 1000


def progress(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.PROGRESS."""
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
    """Fill Part.LOG and Part.SERIES, from one reading of the end of the log."""
    if Part.SERIES in asked.parts:
        measured, series = recent_and_series(asked.paths, SERIES_LINES)
        seen = replace(seen, series=series.iterations, guarded=series.guarded)
    elif Part.LOG in asked.parts:
        measured = recent(asked.paths)
    if Part.LOG not in asked.parts:
        return seen
    return replace(seen, measured=measured, log_written_at=changed_at(asked.paths.main_log), log_read_at=now())


#: A training that the kill switch stops leaves after its last save.
_SAVE_MOST = timedelta(hours=1)


def attempts(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.ATTEMPTS."""
    found, known = attempts_file.read(asked.paths), asked.known
    word = last_word(known.chains)
    row = without_progress(found, word.submitted_at) if word is not None else 0
    running, saved = found[-1] if found and found[-1].is_open else None, seen.checkpoint
    if running is not None and saved is not None and saved.iteration > (running.iteration_at_start or 0):
        row = 0  # it has saved one
    stops = word is not None and learned_nothing(found, word.submitted_at)
    chains = tuple(known.chains)
    return replace(seen, attempts=tuple(found), attempts_without_progress=row, learned_nothing=stops, chains=chains)


def lease(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.LEASE."""
    try:
        return replace(seen, lease=lease_file.look(asked.paths))
    except OSError:
        return seen


def kill_switch(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.KILL_SWITCH, and the other records of a stop on purpose."""
    with contextlib.suppress(OSError):
        seen = replace(seen, cancelled=_cancelled(asked), deactivated=_deactivated(asked))
    try:
        return replace(seen, kill_switch=kill_switch_file.state(asked.paths))
    except OpsctlError:
        return seen


def _cancelled(asked: Asked) -> Cancel | None:
    """Return what a person cancelled last, if that is why nothing trains. Raises OSError.

    A colleague's chain, and with `queued_only` the running job, continue after a cancel. What they die of is news.
    """
    cancel = resting(asked.known.chains, read_cancels(asked.paths))
    found = attempts_file.read(asked.paths) if cancel is not None else []
    return cancel if cancel is not None and (not found or _explains(cancel, found[-1])) else None


def _deactivated(asked: Asked) -> Deactivation | None:
    """Return the last deactivation of the kill switch, if nothing trained or was submitted since. Raises OSError."""
    off = max(read_deactivations(asked.paths), key=lambda one: one.at, default=None)
    if off is None or any(chain.submitted_at > off.at for chain in asked.known.chains):
        return None
    found = attempts_file.read(asked.paths)
    ended_at = found[-1].closed_at if found else off.at
    if ended_at is None:
        return None
    is_saving = bool(found) and found[-1].reason == Ending.KILL_SWITCH  # it left after its last save
    return off if ended_at <= off.at + (_SAVE_MOST if is_saving else CLOCKS_DIFFER) else None


def _explains(cancel: Cancel, last: Attempt) -> bool:
    """Return whether `cancel` ended `last`, the newest attempt, or let it end as planned. Pure."""
    if last.closed_at is not None and last.closed_at <= cancel.at + CLOCKS_DIFFER:
        return True
    if cancel.queued_only:
        return last.reason in AS_PLANNED or last.reason == Ending.CANCELLED
    array = str(last.array_job_id or last.job_id)
    return any(job.partition("_")[0] == array for job in cancel.jobs)


def run_file(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.RUN_FILE."""
    run = asked.run
    revision = run.revision
    if revision is None:
        return seen
    differs: Sequence[str] = ()
    problem = run.problem
    if run.loaded is not None and not revision.damage:
        try:
            differs = differs_from_published(run.loaded, revision)
        except OpsctlError as error:
            problem = str(error)
    published = Published(revision.name, revision.created_at, revision.created_by, tuple(differs), problem)
    return replace(seen, published=published)


#: The oldest of more checkpoints are not checked: a training resumes from one of the newest.
NEWEST = 3
#: A large checkpoint has thousands of files; a slow file server ends the look after this, the latest comes first.
BUDGET_S = 5.0


def files(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.FILES. Raises CheckpointError or OSError where the checkpoints cannot be listed."""
    root = asked.paths.checkpoints
    try:
        latest = latest_folder(root)
    except CheckpointError:  # which another check says
        latest = None
    folders = checkpoint_folders(root)[:NEWEST]
    if latest is not None:
        folders = [latest, *(one for one in folders if one.name != latest.name)]
    ends_at = time.monotonic() + BUDGET_S
    found = []
    for number, folder in enumerate(folders):
        if number and time.monotonic() >= ends_at:
            break
        fault = fault_of(folder)
        if fault is not None and folder.is_dir():  # one that was just removed is not incomplete
            is_latest = latest is not None and folder.name == latest.name
            found.append(FaultyCheckpoint(folder.name, fault, is_latest, changed_at=changed_at(folder)))
    return replace(seen, faulty=(*found, *_leftovers(root)))


def _leftovers(root: Path) -> list[FaultyCheckpoint]:
    """Return the files left by unfinished saves, or written so far by a save in progress."""
    try:
        folders = sorted(path for path in root.iterdir() if path.name.startswith(TEMPORARY))
    except FileNotFoundError:
        return []
    return [
        FaultyCheckpoint(one.name, "a save that never finished left it", False, True, changed_at(one))
        for one in folders
    ]


def timings(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.TIMINGS."""
    from opsctl.diagnosis.nodes.node_evidence import rank_timings  # no screen asks for it

    attempts = seen.attempts or tuple(attempts_file.read(asked.paths))
    if not attempts or not attempts[-1].is_open:
        return seen
    newest = attempts[-1]
    found = rank_timings(asked.paths.output, asked.paths.attempt_folder(newest.job_id))
    return replace(seen, timings=found, timed_attempt=newest.id)
