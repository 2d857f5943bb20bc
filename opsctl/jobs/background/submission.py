"""The Slurm jobs of background commands: submitted, found again by their comment, and settled by Slurm's answer."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.timestamps import iso, now
from opsctl.jobs import tracked_job
from opsctl.jobs.background.records import BackgroundCommand, CommandJob, CommandRecords, CommandState, new_name
from opsctl.jobs.tracked_job import Absent, Answer, TrackedJob, Undecided, ended_state
from opsctl.run.config.schema import JobsTable
from opsctl.run.render.background import CommandRequest, command_script
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.durations import DURATION_RULE, parse_duration_s
from opsctl.slurm.states import End
from opsctl.slurm.types import Job, JobEnd, job_outcome

#: How often a job asks for its successor, where Slurm answers and does not have it.
TRIES = 5
_PAUSE_S = 2.0
#: Of a job's limit. Slurm checks limits twice a minute, and warns when the next check would be too late: with a
#: shorter limit while the batch script still starts, which then dies of it.
SHORTEST_LIMIT_S = 120
#: By what ended its job. A "stopped" command can be typed again.
_STATES: dict[End, CommandState] = {
    End.TIME_LIMIT: "stopped",
    End.CANCELLED: "cancelled",
    End.PREEMPTED: "stopped",
    End.NODE_FAILURE: "stopped",
    End.OUT_OF_MEMORY: "failed",
}
_AGAIN = "type it again"


@dataclass(frozen=True)
class Seen:
    """A background command and Slurm's answer about it."""

    command: BackgroundCommand
    job: Job | None = None  # its last one, while Slurm has it
    unknown: str = ""  # why Slurm's answer about an open command is not known

    @property
    def state(self) -> str:
        """The recorded state of a command that has ended, else Slurm's."""
        if not self.command.is_open:
            return self.command.state
        if self.job is not None:
            return "held" if self.job.is_held else self.job.state.lower()
        return "unknown" if self.unknown else "on its way"


def new_command(
    words: Sequence[str],
    folder: str,
    umask: int,
    cluster: Cluster,
    table: JobsTable,
    given: Mapping[str, str | None],
    *,
    goes_on: bool,
    internet: bool,
    run: str,
) -> BackgroundCommand:
    """Return a new command that no other process knows yet. given: sbatch options, which take precedence over the
    profile's `table`.

    Raises OpsctlError for an invalid time limit.
    """
    options = {
        "partition": table.internet_partition if internet and table.internet_partition else table.partition,
        **{name: getattr(table, name) for name in ("account", "qos", "constraint", "time")},
        "nice": str(table.nice) if table.nice else None,
        **{name: value for name, value in given.items() if value is not None},
    }
    try:
        limit_s = parse_duration_s(options["time"] or "")
    except ValueError:
        limit_s = 0
    if limit_s < SHORTEST_LIMIT_S:
        where = "--time" if given.get("time") is not None else "the profile's [jobs] time"
        raise OpsctlError(f"{where} {options['time']!r}: allowed are two minutes or more, as {DURATION_RULE}")
    at = now()
    return BackgroundCommand(
        name=new_name(),
        words=tuple(words),
        folder=folder,
        umask=umask,
        cluster=cluster,
        options=tuple((name, value) for name, value in options.items() if value is not None),
        limit_s=limit_s,
        goes_on=goes_on,
        run=run,
        asked_at=at,
        jobs=(CommandJob(asked_at=at),),
    )


def job_umask(group: str | None) -> int:
    """Return the umask of a job: files of a run with a group belong to the group, else as the caller's."""
    if group:
        return 0o007
    found = os.umask(0o077)
    os.umask(found)
    return found


def script_of(place: CommandRecords, command: BackgroundCommand) -> str:
    """Return the batch script of the command's newest job. Raises RunFileError for a value that no script can hold."""
    return command_script(
        CommandRequest(
            job_name=command.job_name,
            comment=command.comment,
            name=command.name,
            number=len(command.jobs),
            options=command.options,
            limit_s=command.limit_s,
            output=str(place.output(command.name)),
            cluster=command.cluster,
            python=sys.executable,
            locale=os.environ.get("LC_ALL", ""),
        )
    )


def start(place: CommandRecords, client: SlurmClient, command: BackgroundCommand) -> BackgroundCommand:
    """Submit the first job of a new command; return the command with the job's id.

    Raises OpsctlError if the same command is open. If Slurm refuses, no record is left.
    """
    script = script_of(place, command)
    with place.locked("start a job"):
        _refuse_two(place, client, command)
        place.forget_old()
        place.write(command)
        try:
            command = command.with_last(job_id=_send(client, command, script))
        except Undecided:
            raise
        except Absent:
            place.write(command.ended("lost", "Slurm did not answer when it was asked to take it"))
            raise
        except SlurmError:
            place.forget(command.name)
            raise
        with contextlib.suppress(OSError):  # the next `settle` finds its id in the queue
            place.write(command)
    return command


def start_next(
    place: CommandRecords, client: SlurmClient, command: BackgroundCommand, pause: Callable[[float], None] = time.sleep
) -> BackgroundCommand:
    """Submit a command's next job. The caller, its last job, holds the lock. Raises SlurmError, OSError."""
    command = msgspec.structs.replace(command, jobs=(*command.jobs, CommandJob(asked_at=now())))
    place.write(command)
    script = script_of(place, command)
    for tried in range(TRIES):
        try:
            command = command.with_last(job_id=_send(client, command, script))
            break
        except Undecided:
            break  # should Slurm have it, it finds itself on record
        except Absent:
            if tried == TRIES - 1:
                raise
            pause(_PAUSE_S)
    place.write(command)
    return command


def check(
    place: CommandRecords, wanted: Sequence[BackgroundCommand], client_of: Callable[[Cluster], SlurmClient]
) -> tuple[list[Seen], str]:
    """Return the states of `wanted`, and why not all of them are known; a cluster without an answer hides no other's.

    Closes what has ended, under the lock, which is not taken where nothing is open. Raises OpsctlError, OSError.
    """
    seen = {one.name: Seen(one) for one in wanted}
    problems: list[str] = []
    for cluster in dict.fromkeys(one.cluster for one in wanted if one.is_open):
        own = [one for one in wanted if one.cluster == cluster and one.is_open]
        try:
            with place.locked("settle jobs"):
                found = settle(place, client_of(cluster), own)
        except SlurmError as error:
            found = [Seen(place.read(one.name) or one, unknown=str(error)) for one in own]
            problems.append(str(error))
        seen.update((one.command.name, one) for one in found)
    return list(seen.values()), "; ".join(dict.fromkeys(problems))


def settle(place: CommandRecords, client: SlurmClient, wanted: Sequence[BackgroundCommand]) -> list[Seen]:
    """Return the states of `wanted`, all of one cluster, and close what has ended. The caller holds the lock.

    Raises SlurmError, OSError.
    """
    if not any(one.is_open for one in wanted):
        return [Seen(one) for one in wanted]
    known: dict[str, BackgroundCommand] = {}

    def read_open() -> dict[str, TrackedJob]:
        known.update((one.name, place.read(one.name) or one) for one in wanted)
        return {name: tracked(one) for name, one in known.items() if one.is_open}

    answers = tracked_job.settle(client, read_open, [account_name()])
    return [_settled(place, one, answers.get(name, Answer())) for name, one in known.items()]


def _settled(place: CommandRecords, command: BackgroundCommand, answer: Answer) -> Seen:
    if command.is_newer:
        return Seen(command, answer.job, unknown="a newer opsctl wrote it")
    changed = command
    if answer.job is not None and not command.last.job_id:
        changed = command.with_last(job_id=answer.job.job_id)
    elif answer.end is not None:
        changed = _closed(command, answer.end)
    elif answer.lost:
        changed = command.ended("lost", f"{answer.lost}: {_AGAIN}")
    if changed != command:
        place.write(changed)
    return Seen(changed, answer.job)


def _closed(command: BackgroundCommand, end: JobEnd) -> BackgroundCommand:
    outcome = job_outcome(end)
    if outcome.end is None and end.signal == signal.SIGUSR1:  # ends only a batch script that does not ignore it yet
        detail = f"Slurm warned it of its limit before it had begun: {_AGAIN}"
        return command.ended("stopped", detail, outcome.exit_code)
    state = ended_state(outcome, _STATES, "done", "failed")
    detail = f"{outcome.words}, and no further job continues it: {_AGAIN}" if state == "stopped" else outcome.words
    return command.ended(state, detail, (outcome.exit_code or None) if outcome.end is not None else outcome.exit_code)


def _refuse_two(place: CommandRecords, client: SlurmClient, command: BackgroundCommand) -> None:
    def key(one: BackgroundCommand) -> tuple[object, ...]:
        return one.words, one.folder, one.cluster

    same = [one for one in place.all() if one.is_open and key(one) == key(command)]
    for seen in settle(place, client, same):
        if (one := seen.command).is_open:
            job = f"job {one.last.job_id}, " if one.last.job_id else ""
            raise OpsctlError(
                f"the same is under way since {iso(one.asked_at)} ({job}{seen.state}): opsctl jobs logs {one.name} "
                f"shows it, opsctl jobs cancel {one.name} ends it"
            )


def tracked(command: BackgroundCommand) -> TrackedJob:
    """Return the submission of its last job."""
    return TrackedJob(command.sent, command.last.asked_at, command.last.job_id)


def _send(client: SlurmClient, command: BackgroundCommand, script: str) -> int:
    return tracked_job.send(client, script, tracked(command), advice=f"opsctl jobs shows the state of {command.name}")
