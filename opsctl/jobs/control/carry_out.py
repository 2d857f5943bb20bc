"""Carry out requests about the queue: by the owner's running job, or by the user who types the command.

It never touches jobs of another user or of another run, whatever the files contain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_and_host, account_name
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import locked
from opsctl.jobs.control import live_jobs, overlap
from opsctl.jobs.control.published import further_chain, send_further
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import requests
from opsctl.run.state.chains import REQUEST, record_cancel, recorded
from opsctl.run.state.group_folder import LOCK_WAIT_S
from opsctl.run.state.identity import refuse_a_copy
from opsctl.run.state.requests import OF_A_JOB, Action, Asked, Audited, Carrier, Outcome, Request, carrying
from opsctl.slurm.arrays import one_at_a_time, tasks_of
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.states import State
from opsctl.slurm.types import Job

_PLACE = re.compile(r"(?P<array>\d+)(_(?P<task>\d+))?")


@dataclass(frozen=True)
class Result:
    """The result of a request."""

    outcome: Outcome
    words: str


@dataclass(frozen=True)
class Queue:
    """The queue, and the part of it that may be changed: one account's jobs of one run."""

    paths: RunPaths
    cluster: Cluster  # where a chain is extended
    client: SlurmClient
    jobs: Sequence[Job]


def carry_out(paths: RunPaths, folder: Path, cluster: Cluster) -> list[Audited]:
    """Carry out what is asked of the caller's jobs that no running job of his answers; what was done.

    folder: the run file's. Slurm is asked only when something is there to do. Raises OpsctlError in a copy of a run,
    SlurmUnreachable, and OSError where requests cannot be read.
    """
    me = account_name()
    if not (requests.waiting(paths) or requests.taken(paths)):
        return []
    refuse_a_copy(paths, "carry out requests")
    with carrying(paths, account_and_host()) as carrier:

        def queue() -> Queue:
            client = client_for(cluster)
            jobs = [job for job in recorded(paths).own(client.jobs(users=[me])) if _is_of(job, folder)]
            return Queue(paths, cluster, client, jobs)

        return settle(carrier, paths, me, queue)


def settle(carrier: Carrier, paths: RunPaths, me: str, queue: Callable[[], Queue], own_job: str = "") -> list[Audited]:
    """Answer every request to `me` that no running job answers itself; what was answered.

    own_job: the one that asks this, which answers for itself. Raises SlurmError, OSError.
    """
    done = [carrier.answer(left, *_begun(left)) for left in carrier.left_by_the_dead()]
    found = (requests.look(paths, one) for one in requests.waiting(paths))
    meant = [one for one in found if one is not None and _concerns(one, me, own_job)]
    if not meant:
        return done
    seen = queue() if any(not one.problem for one in meant) else None
    for asked in meant:
        if seen is not None and asked.request is not None and _answers_itself(asked.request, seen.jobs):
            continue
        had = carrier.take(asked.id)
        if had is not None:
            result = _result(had, asked, seen)
            done.append(carrier.answer(had, result.outcome, result.words))
    return done


def on_queue(request: Request, asker: str, queue: Queue) -> Result:
    """Carry out a request about the queue, and return the result."""
    try:
        if request.action == Action.EXTEND_CHAIN:
            return _extend(request, queue)
        chosen = meant_of(request, queue.jobs)
        if not chosen:
            state = "held" if request.action == Action.RELEASE_QUEUED else "queued"
            return Result(Outcome.TOO_LATE, f"nothing of {request.owner}'s that was meant is {state} any more")
        shown = overlap.describe(chosen)
        if request.action == Action.HOLD_QUEUED:
            queue.client.hold([job.tasks_id for job in chosen])
            return Result(Outcome.DONE, f"held {shown}; to release it: opsctl request release-queued")
        if request.action == Action.RELEASE_QUEUED:
            queue.client.release([job.tasks_id for job in chosen])
            return Result(Outcome.DONE, f"released {shown}")
        with locked(queue.paths.output, queue.paths.lock, LOCK_WAIT_S, "cancel"):
            # Recorded before the jobs go, so that a reader of an empty queue finds it.
            record_cancel(queue.paths, [job.display_id for job in chosen], queued_only=True, by=asker)
            queue.client.cancel(overlap.live_arrays(chosen), pending_only=True)
        return Result(Outcome.DONE, f"cancelled {shown}")
    except OpsctlError as error:
        return Result(Outcome.FAILED, str(error))
    except OSError as error:
        return Result(Outcome.FAILED, file_problem(error, queue.paths.state))


def meant_of(request: Request, jobs: Sequence[Job]) -> list[Job]:
    """Return the `jobs` that a request about the queue means: queued when it was made, and still queued. Pure."""
    pending = [job for job in jobs if job.is_pending and job.array_job_id in request.chains]
    if request.action == Action.HOLD_QUEUED:
        return [job for job in pending if not job.is_held]
    if request.action == Action.RELEASE_QUEUED:
        return [job for job in jobs if job.is_held and job.array_job_id in request.chains]
    return pending


def find(job: str, jobs: Sequence[Job]) -> Job | None:
    """Return the row with the job `12_2` or `12`: its own row, or the row of the tasks that have not started. Pure."""
    place = _PLACE.fullmatch(job)
    if place is None:
        return None
    array, task = int(place["array"]), place["task"]
    for row in jobs:
        if row.display_id == job:
            return row
        if (
            task
            and row.array_job_id == array
            and not row.array_task.isdigit()
            and int(task) in tasks_of(row.array_task)
        ):
            return row
    return None


def _concerns(asked: Asked, me: str, own_job: str) -> bool:
    if asked.problem or asked.request is None:
        return True
    return asked.request.owner == me and (not own_job or asked.request.job != own_job)


def _answers_itself(request: Request, jobs: Sequence[Job]) -> bool:
    """Return whether the job that is meant is running: it answers its requests itself."""
    if request.action not in OF_A_JOB:
        return False
    job = find(request.job, jobs)
    return job is not None and job.is_running and job.state != State.COMPLETING


def _begun(left: Asked) -> tuple[Outcome, str]:
    what = left.request.action if left.request else "it"
    said = f"the process that took it began to {what} and ended before it recorded a result"
    return Outcome.FAILED, f"{said}: opsctl queue and opsctl attempts show the present state; it is not tried again"


def _result(had: Asked, asked: Asked, queue: Queue | None) -> Result:
    if had.problem:
        return Result(Outcome.REFUSED, had.problem)
    if queue is None or had.request is None or (had.request, had.uid) != (asked.request, asked.uid):
        return Result(Outcome.REFUSED, "the request was changed while it was read")
    if had.request.action in OF_A_JOB:
        return _on_waiting_job(had.request, queue)
    return on_queue(had.request, had.asker, queue)


def _on_waiting_job(request: Request, queue: Queue) -> Result:
    """Carry out a request to a job that is not running."""
    job = find(request.job, queue.jobs)
    if job is None or request.attempt or not job.is_pending:
        return Result(Outcome.TOO_LATE, f"job {request.job} has ended: its time has passed")
    if request.action != Action.STOP:
        return Result(Outcome.REFUSED, f"job {request.job} has not started: there is nothing to {request.action}")
    try:
        with locked(queue.paths.output, queue.paths.lock, LOCK_WAIT_S, "cancel"):
            # scancel --state=PENDING of one task cancels its whole array (Slurm 22.05). What is held cannot start.
            queue.client.hold([request.job])
            held = find(request.job, queue.client.jobs(job_ids=[job.array_job_id]))
            if held is None or not held.is_pending:
                queue.client.release([request.job])
                return Result(Outcome.TOO_LATE, f"job {request.job} has just started: ask again to stop it")
            queue.client.cancel([request.job])
    except OpsctlError as error:
        return Result(Outcome.FAILED, str(error))
    return Result(Outcome.DONE, f"cancelled job {request.job}, which had not started")


def _extend(request: Request, queue: Queue) -> Result:
    """Submit one more array behind the last one, unless one was submitted since the request."""
    paths = queue.paths
    further = further_chain(paths, None if request.tasks is None else one_at_a_time(f"1-{request.tasks}"))
    with live_jobs.run_lock(paths, f"submit {further.name}"):
        live = live_jobs.settled(paths, queue.cluster, queue.client)
        newer = sorted(set(overlap.live_arrays(live.jobs)) - set(request.chains))
        if newer:
            said = f"chain {', '.join(map(str, newer))} was submitted after this request"
            return Result(Outcome.TOO_LATE, f"{said}. To add one more chain, repeat the request")
        done = send_further(further, queue.cluster, queue.client, live, REQUEST)
    behind = f" behind {', '.join(done.chain.after)}" if done.chain.after else ""
    submitted = ", ".join(f"{one.chain.chain} of tasks {one.chain.array}" for one in done.all)
    return Result(Outcome.DONE, f"submitted chain {submitted}{behind}")


def _is_of(job: Job, folder: Path) -> bool:
    """Check the folder that Slurm shows. The run's id is not enough, since its file can be copied."""
    if job.work_dir == str(folder):
        return True
    try:
        return Path(job.work_dir).samefile(folder)
    except OSError:
        return False
