"""What the run's own records say: attempts and chains, who may write, the kill switch, what is published."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from opsctl.core.errors import OpsctlError
from opsctl.monitoring.gather.asked import Asked
from opsctl.monitoring.snapshot import Published, Snapshot
from opsctl.run.attempts import events as attempts_file
from opsctl.run.attempts.ending import AS_PLANNED, Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import learned_nothing, without_progress
from opsctl.run.state import kill_switch as kill_switch_file
from opsctl.run.state import lease as lease_file
from opsctl.run.state.chains import CLOCKS_DIFFER, Cancel, last_word, read_cancels, resting
from opsctl.run.state.kill_switch import Deactivation, read_deactivations
from opsctl.run.state.revisions import differs_from_published

#: A training that the kill switch stops leaves after its last save.
_SAVE_MOST = timedelta(hours=1)


def attempts(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.ATTEMPTS."""
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
    """Part.LEASE."""
    try:
        return replace(seen, lease=lease_file.look(asked.paths))
    except OSError:
        return seen


def kill_switch(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.KILL_SWITCH, and what else says that a person wants the training to rest."""
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
    """Part.RUN_FILE."""
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
