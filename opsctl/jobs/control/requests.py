"""Request something of the owner's jobs: resolve what is meant, refuse what is impossible, and wait for the answer.

What the job cannot do is refused here, by name and at once. A request names its job and arrays, so it does nothing to
later ones.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmUnreachable
from opsctl.core.files.trusted import opened_folder
from opsctl.jobs.control import live_jobs, overlap
from opsctl.jobs.control.carry_out import find, meant_of
from opsctl.run.attempts.close_lost import attempt_of
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.events import read as read_attempts
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE
from opsctl.run.checkpoints.inventory import is_finished, last_checkpoint
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import lease, requests
from opsctl.run.state.group_folder import explained_disk_errors, way_in
from opsctl.run.state.identity import refuse_a_copy
from opsctl.run.state.requests import MOST_TASKS, OF_A_JOB, Action, Audited, Request, in_a_line
from opsctl.run.state.revisions import newest_whole
from opsctl.slurm.backends import client_for
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.states import State
from opsctl.slurm.types import Job
from trainer.recipe.options import Options

_POLL_S = 0.3


@dataclass(frozen=True)
class RequestOptions:
    """The options of a request."""

    action: Action
    why: str = ""
    job: str | None = None  # as squeue shows it
    tasks: int | None = None
    within_s: int | None = None
    queued_too: bool = False


@dataclass(frozen=True)
class Seen:
    """A snapshot of the run's jobs when a request is made."""

    live: Sequence[Job] | None  # None: Slurm does not answer, or hides others' jobs
    why_blind: str = ""
    trains: Attempt | None = None  # the attempt that has the lease, and whose heartbeat goes on
    attempts: Sequence[Attempt] = ()


@dataclass(frozen=True)
class Meant:
    """A request that can be made, and whether a job that runs answers it."""

    request: Request
    answers: str = ""  # that job; empty: nothing of the owner's runs


def prepare(paths: RunPaths, name: str, options: Options | None, cluster: Cluster, asked: RequestOptions) -> Meant:
    """Prepare the request for `asked` without writing it. Raises OpsctlError if it is impossible."""
    _refuse_for_another_program(paths, asked.action)
    refuse_a_copy(paths, f"ask for {asked.action}")
    refuse_strangers(paths)
    if asked.tasks is not None and not 1 <= asked.tasks <= MOST_TASKS:
        raise OpsctlError(f"a chain is extended by 1 to {MOST_TASKS} tasks, not {asked.tasks}")
    seen = _snapshot(paths, cluster)
    checkpoint = last_checkpoint(paths.checkpoints)
    is_over = options is not None and checkpoint is not None and is_finished(options, checkpoint)
    if is_over and (asked.action == Action.EXTEND_CHAIN or not seen.live):
        raise OpsctlError(f"{name} is finished: there is nothing to {asked.action}")
    return resolve(name, asked, seen)


def resolve(name: str, asked: RequestOptions, seen: Seen) -> Meant:
    """Find the job, or the queue's owner, that `asked` means. Pure. Raises OpsctlError if there is none, or several."""
    host = socket.gethostname()
    said = Request(
        action=asked.action,
        why=in_a_line(asked.why),
        host=host,
        tasks=asked.tasks,
        within_s=asked.within_s,
        queued_too=asked.queued_too,
    )
    if seen.live is None:
        return _by_record(name, said, seen, asked.job)
    if asked.action in OF_A_JOB:
        return _one_job(name, said, seen.live, seen, asked.job)
    return _queue(name, said, seen.live)


def send(paths: RunPaths, request: Request) -> str:
    """Leave the request; its id. Raises OpsctlError where it cannot be written."""
    with explained_disk_errors(paths, "no request was made"):
        return requests.ask(paths, request)


def wait_for_answer(paths: RunPaths, request_id: str, wait_s: float) -> Audited | None:
    """Return the answer as soon as it is recorded; None if there is none within `wait_s` seconds."""
    until = time.monotonic() + wait_s
    while True:
        found = requests.answer_to(paths, request_id)
        if found is not None or time.monotonic() >= until:
            return found
        time.sleep(_POLL_S)


def refuse_strangers(paths: RunPaths) -> None:
    """Raise OpsctlError if the jobs would refuse a request of this user."""
    try:
        with opened_folder(paths.output, paths.output) as (_, keepers):
            owner = keepers.owner
            is_member = keepers.group is not None and keepers.group in (os.getegid(), *os.getgroups())
    except FileNotFoundError:
        raise OpsctlError(f"no folder {paths.output}: the run has no output yet, so nothing of it runs") from None
    if os.geteuid() in (0, owner) or is_member:
        return
    whose = account_name(owner)
    if keepers.group is None:
        raise OpsctlError(f"only {whose} may ask: the run names no group; {way_in(paths.output)}")
    raise OpsctlError(f"{account_name()} does not share this run of {whose}'s; {way_in(paths.output)}")


def _refuse_for_another_program(paths: RunPaths, action: Action) -> None:
    """Raise OpsctlError for a request that only our trainer answers."""
    revision = newest_whole(paths) if action in (Action.SAVE, Action.STACKS) else None
    if revision is not None and revision.file.program is not None:
        instead = "opsctl request stop" if action is Action.SAVE else "py-spy dump --pid PID on the node"
        raise OpsctlError(f"request {action} needs opsctl's trainer, and [program] starts another: {instead}")


def _snapshot(paths: RunPaths, cluster: Cluster) -> Seen:
    attempts = read_attempts(paths)
    try:
        held = lease.look(paths)
    except OSError:
        held = lease.Seen()
    holder = None if held.is_silent else held.holder
    trains = attempt_of(holder, attempts) if holder else None
    trains = trains if trains and trains.is_open else None
    try:
        seen = live_jobs.snapshot(paths, cluster, client_for(cluster))
    except SlurmUnreachable as error:
        return Seen(None, str(error), trains, attempts)
    if seen.unseen and not seen.jobs:
        return Seen(None, CANNOT_SEE, trains, attempts)
    return Seen(seen.jobs, "", trains, attempts)


def _by_record(name: str, said: Request, seen: Seen, job: str | None) -> Meant:
    """Use the lease where Slurm shows nothing: the job with a heartbeat runs, whatever Slurm shows."""
    running = seen.trains
    if running is None or said.action not in OF_A_JOB:
        raise OpsctlError(f"{name}: cannot see which of its jobs to {said.action}: {seen.why_blind}")
    if job not in (None, running.display_id):
        raise OpsctlError(f"{name}: cannot see job {job}: {seen.why_blind}")
    return Meant(_for(said, running.user, running.display_id, running.id), running.display_id)


def _one_job(name: str, said: Request, live_jobs: Sequence[Job], seen: Seen, wanted: str | None) -> Meant:
    running = [job for job in live_jobs if job.is_running and job.state != State.COMPLETING]
    # Of several that run, one trains and the others may wait for their turn.
    trains = [job for job in running if seen.trains and job.job_id == seen.trains.job_id] or running
    chosen = find(wanted, live_jobs) if wanted else trains[0] if len(trains) == 1 else None
    if wanted and chosen is None:
        raise OpsctlError(f"{name} has no job {wanted} in the queue: {_shown(live_jobs)}")
    if chosen is None and running:
        raise OpsctlError(f"{name}: several jobs run, name one with --job: {overlap.describe(running)}")
    if chosen is None:
        what = "to cancel queued tasks: opsctl request cancel-queued" if live_jobs else "to start it: opsctl submit"
        does: str = "print its stacks" if said.action is Action.STACKS else said.action
        raise OpsctlError(f"{name}: nothing runs that could {does}: {_shown(live_jobs)}; {what}")
    if chosen not in running:
        job = wanted or chosen.display_id
        if said.action != Action.STOP or not chosen.is_pending:
            raise OpsctlError(f"{name}: job {job} has not started: there is nothing to {said.action}")
        runs = next((one.display_id for one in running if one.user == chosen.user), "")
        return Meant(_for(said, chosen.user, job, "", _arrays(live_jobs, chosen.user)), runs)
    attempt = next((one.id for one in seen.attempts if one.is_open and one.job_id == chosen.job_id), "")
    request = _for(said, chosen.user, chosen.display_id, attempt, _arrays(live_jobs, chosen.user))
    return Meant(request, chosen.display_id)


def _queue(name: str, said: Request, live_jobs: Sequence[Job]) -> Meant:
    arrays = tuple(overlap.live_arrays(live_jobs))
    if not live_jobs:
        raise OpsctlError(f"{name}: nothing of it runs or is queued: opsctl submit starts a chain")
    if said.action == Action.EXTEND_CHAIN:
        owner = max(live_jobs, key=lambda job: job.array_job_id).user  # the last chain is theirs
    else:
        everybodys = _for(said, "", "", "", arrays)
        owners = {job.user for job in meant_of(everybodys, live_jobs)}
        if not owners:
            what = "held" if said.action == Action.RELEASE_QUEUED else "queued"
            raise OpsctlError(f"{name}: nothing of it is {what}: {_shown(live_jobs)}")
        mine = account_name()
        owner = mine if mine in owners else sorted(owners)[0]
        if len(owners) > 1:
            arrays = tuple(job.array_job_id for job in live_jobs if job.user == owner)
    runs = [job for job in live_jobs if job.user == owner and job.is_running and job.state != State.COMPLETING]
    return Meant(_for(said, owner, "", "", arrays), runs[0].display_id if runs else "")


def _for(asked: Request, owner: str, job: str, attempt: str, chains: Sequence[int] = ()) -> Request:
    return replace(asked, owner=owner, job=job, attempt=attempt, chains=tuple(chains))


def _arrays(live_jobs: Sequence[Job], user: str) -> list[int]:
    return overlap.live_arrays(job for job in live_jobs if job.user == user)


def _shown(live_jobs: Sequence[Job]) -> str:
    return f"there is {overlap.describe(live_jobs)}" if live_jobs else "nothing is queued"
