"""Close attempts that could not close themselves (node lost, kill -9, cancelled), with Slurm's information."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from opsctl.core.account import account_and_host, account_name
from opsctl.core.errors import SlurmError
from opsctl.core.timestamps import now
from opsctl.run.attempts.ending import STARTED_NOTHING, Ending
from opsctl.run.attempts.events import Attempt, append_closed, read
from opsctl.run.attempts.outcome import LOST, StepEnd, closed, read_evidence
from opsctl.run.checkpoints.inventory import Checkpoint, last_checkpoint
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import Recorded, recorded
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.job_match import Match, Sent, match, parse_comment
from opsctl.slurm.states import Phase, State, end_of
from opsctl.slurm.types import Job, JobEnd, exit_code_of
from trainer.formats.attempt.lease import Holder
from trainer.formats.checkpoint.history import Rollback

#: Tolerated difference between clocks of nodes and controller: a later job start contradicts the attempt's opening.
CLOCK_TOLERANCE = timedelta(minutes=2)
#: Adds a verdict to an attempt that another process closes, from the attempt and Slurm's record of its end.
Judge = Callable[[Attempt, JobEnd | None], Attempt]
#: Phases of a job that has, or may have, an allocation.
_MAY_BE_ON_NODES = (Phase.ON_NODES, Phase.PAUSED, Phase.UNKNOWN)


@dataclass(frozen=True)
class Settled:
    """All attempts, with their endings as far as known."""

    attempts: list[Attempt]
    unseen: frozenset[str] = frozenset()  # ids of open attempts whose jobs Slurm does not show to the caller


def close_lost_attempts(
    paths: RunPaths,
    client: SlurmClient,
    own_job_id: int | None = None,
    cluster: str = "",
    judge: Judge | None = None,
) -> list[Attempt]:
    """Close what can be closed, and return all attempts; see `settle`."""
    return settle(paths, client, own_job_id, cluster, judge).attempts


def settle(
    paths: RunPaths,
    client: SlurmClient,
    own_job_id: int | None = None,
    cluster: str = "",
    judge: Judge | None = None,
) -> Settled:
    """Write a closing for each open attempt whose job has ended.

    An attempt of another user stays open if Slurm has no record of its job and shows only the caller's jobs. Two
    callers at once are harmless: the first closing counts, and the job's own takes precedence. A caller who may not
    write still gets the result. own_job_id: a job that has opened nothing yet, so an open attempt under its id is from
    before a requeue. cluster: Slurm's name of `client`'s cluster; attempts known to be of another cluster stay open,
    because its job ids are different. judge: adds the verdict before the closing is written. Raises SlurmUnreachable.
    """
    attempts = read(paths)
    still_open = [attempt for attempt in attempts if attempt.is_open and may_be_of(attempt, cluster)]
    if not still_open:
        return Settled(attempts)
    ids = {attempt.job_id for attempt in still_open}
    known = recorded(paths)
    queue = {job.job_id: job for job in client.jobs(job_ids=ids) if job.job_id in ids}
    unsettled = [
        attempt
        for attempt in still_open
        if attempt.job_id == own_job_id or not holds(attempt, queue.get(attempt.job_id), known)
    ]
    ends = client.ends({attempt.job_id for attempt in unsettled}) if unsettled else {}
    hidden = _hidden([one for one in unsettled if one.job_id not in queue and one.job_id not in ends], client)
    lost = [attempt for attempt in unsettled if attempt.id not in hidden]
    ends = _with_preemptions(lost, ends, client)
    settled = closings(lost, attempts, queue, ends, paths, account_and_host())
    if judge is not None:
        settled = [judge(attempt, own_end(attempt, ends.get(attempt.job_id), known)) for attempt in settled]
    for attempt in settled:
        with contextlib.suppress(OSError):
            append_closed(paths, attempt)
    by_id = {attempt.id: attempt for attempt in settled}
    # Closings appended meanwhile, above all the job's own, are in the file and take precedence.
    now_known = [by_id.get(attempt.id, attempt) if attempt.is_open else attempt for attempt in read(paths)]
    return Settled(now_known, hidden & {attempt.id for attempt in now_known if attempt.is_open})


def _with_preemptions(lost: Sequence[Attempt], ends: Mapping[int, JobEnd], client: SlurmClient) -> dict[int, JobEnd]:
    """Return `ends`, with a job that left in the grace time of a preemption as preempted. Asks Slurm if unclear."""
    unclear = {one.job_id for one in lost if one.job_id in ends and end_of(ends[one.job_id].state) is None}
    try:
        preempted = client.preempted(unclear) if unclear else {}
    except SlurmError:  # their ending is known without it
        preempted = {}
    return {
        job_id: replace(end, state=str(State.PREEMPTED)) if job_id in preempted else end for job_id, end in ends.items()
    }


def _hidden(gone: Sequence[Attempt], client: SlurmClient) -> frozenset[str]:
    """Return ids of others' attempts whose jobs Slurm may hide from the caller. Asks Slurm only if there are such."""
    others = frozenset(attempt.id for attempt in gone if attempt.user != account_name())
    return others if others and client.hides_others_jobs() else frozenset()


def may_be_of(attempt: Attempt, cluster: str) -> bool:
    """Return True if its job can belong to that cluster; also if either name is unknown."""
    return not cluster or not attempt.cluster or attempt.cluster == cluster


def holds(attempt: Attempt, job: Job | None, known: Recorded) -> bool:
    """Return True if the queue's row is the open attempt's own job on its nodes: not requeued, and not another job
    with the same id.
    """
    if job is None or job.phase not in _MAY_BE_ON_NODES or _starts_after(job.started_at, attempt):
        return False
    found = match(job, _sent(attempt, known))
    # Without records, or in a copy of the run, there is no proof.
    return found is Match.OURS or (found is Match.UNKNOWN and not known.run_id)


def own_end(attempt: Attempt, end: JobEnd | None, known: Recorded) -> JobEnd | None:
    """Return `end`, which Slurm has for the attempt's job id; None if it is another job's with the same id."""
    if end is None or _is_other_job(end, attempt) or match(end, _sent(attempt, known)) is Match.NOT_OURS:
        return None
    return end


def _sent(attempt: Attempt, known: Recorded) -> Sent:
    """Return the record of an attempt's job. A requeue also counts as a submission before the attempt."""
    sent = known.sent(attempt.array_job_id or attempt.job_id, attempt.user)
    return replace(sent, latest=attempt.opened_at + CLOCK_TOLERANCE if attempt.opened_at is not None else None)


def closings(
    lost: Sequence[Attempt],
    attempts: Sequence[Attempt],
    queue: Mapping[int, Job],
    ends: Mapping[int, JobEnd],
    paths: RunPaths,
    closed_by: str,
) -> list[Attempt]:
    """Return the `lost` attempts with their ends from their folders and Slurm."""
    known, found = recorded(paths), []
    for attempt in lost:
        end, job = own_end(attempt, ends.get(attempt.job_id), known), queue.get(attempt.job_id)
        if job is not None and match(job, _sent(attempt, known)) is Match.NOT_OURS:
            job = None
        state, note = _slurm_state(attempt, job, end)
        evidence = read_evidence(paths.output, paths.attempt_folder(attempt.job_id))
        step = StepEnd(exit_code=None if end is None else exit_code_of(end), slurm_state=state)
        ended_at = (end.ended_at if end else None) or now()
        reached = checkpoint_of(attempt, attempts, last_checkpoint(paths.checkpoints))
        found.append(closed(attempt, step, evidence, reached, ended_at, closed_by, note))
    return found


def _slurm_state(attempt: Attempt, job: Job | None, end: JobEnd | None) -> tuple[str, str]:
    """Return (Slurm's state, or LOST or REQUEUED, and a note for the user)."""
    if end is not None:
        return end.state, f"Slurm state {end.state}"
    if job is not None and parse_comment(job.comment) is not None:
        return State.REQUEUED, "Slurm requeued the job after a node failure or a preemption"
    return LOST, f"Slurm no longer knows job {attempt.job_id}"


def _is_other_job(end: JobEnd, attempt: Attempt) -> bool:
    ended_before = (
        end.ended_at is not None
        and attempt.opened_at is not None
        and end.ended_at + CLOCK_TOLERANCE < attempt.opened_at
    )
    return ended_before or _starts_after(end.started_at, attempt)


def _starts_after(started_at: datetime | None, attempt: Attempt) -> bool:
    return started_at is not None and attempt.opened_at is not None and started_at > attempt.opened_at + CLOCK_TOLERANCE


def checkpoint_of(attempt: Attempt, attempts: Sequence[Attempt], newest: Checkpoint | None) -> Checkpoint | None:
    """Return the last checkpoint that can be this attempt's: a later attempt may have made newer ones."""
    later = [one for one in attempts if one.number > attempt.number and one.reason not in STARTED_NOTHING]
    if not later or newest is None:
        return newest
    started_from = later[0].iteration_at_start
    return None if started_from is None else Checkpoint(newest.folder, started_from, 0)


def over_on_record(holder: Holder, attempts: Iterable[Attempt], requeued_id: int | None = None) -> str | None:
    """Return why the lease has ended according to `attempts`, else None. requeued_id: the asking job's id, if Slurm has
    restarted it. Pure.
    """
    if requeued_id is not None and holder.job_id == requeued_id:
        return "Slurm has restarted the job"
    attempt = attempt_of(holder, attempts)
    if attempt is None or attempt.reason is None or attempt.reason == Ending.UNKNOWN:
        return None
    return f"its attempt has ended: {attempt.reason}"


def over_by_slurm(holder: Holder, paths: RunPaths, client: SlurmClient, queue: Sequence[Job], cluster: str) -> bool:
    """Return the same after asking Slurm for the end of the holder's job. Writes nothing. Raises SlurmUnreachable."""
    attempts = read(paths)
    attempt = attempt_of(holder, attempts)
    if attempt is not None and attempt.is_open and may_be_of(attempt, cluster):
        job = next((job for job in queue if job.job_id == attempt.job_id), None)
        if holds(attempt, job, recorded(paths)):
            return False
        ends = client.ends({attempt.job_id})
        attempts = closings([attempt], attempts, {job.job_id: job} if job else {}, ends, paths, "")
    return over_on_record(holder, attempts) is not None


def attempt_of(holder: Holder, attempts: Iterable[Attempt]) -> Attempt | None:
    """Return the attempt that holds the lease; None before it is recorded."""
    return next((one for one in attempts if one.id == holder.attempt), None)


def went_back(latest: int | None, attempts: Sequence[Attempt], rollbacks: Sequence[Rollback]) -> str | None:
    """Return why `latest` is earlier than the last attempt left it without a rollback on record; else None."""
    trained = (one for one in reversed(attempts) if one.reason not in STARTED_NOTHING)
    last = next((one for one in trained if one.checkpoint_at_end is not None), None)
    if latest is None or last is None or last.checkpoint_at_end is None or latest >= last.checkpoint_at_end:
        return None
    ended_at = last.closed_at
    for one in rollbacks:
        is_since = one.at is None or ended_at is None or one.at + CLOCK_TOLERANCE >= ended_at
        if one.to <= latest and is_since:
            return None
    was = f"iteration {last.checkpoint_at_end}, where attempt {last.number} left it"
    return f"the latest checkpoint changed from {was}, to {latest}, without a recorded rollback"
