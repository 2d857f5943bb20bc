"""The Slurm jobs of errands: sent, found again by their comment, and settled by Slurm's word."""

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
from opsctl.jobs.background.records import Errand, ErrandJob, Errands, ErrandState, new_name
from opsctl.jobs.tracked_job import Absent, Answer, TrackedJob, Undecided, ended_state
from opsctl.run.config.schema import JobsTable
from opsctl.run.render.background import ErrandRequest, errand_script
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.durations import DURATION_RULE, parse_duration_s
from opsctl.slurm.states import End
from opsctl.slurm.types import Job, JobEnd, job_outcome

#: How often a job asks for its successor, where Slurm answers and does not have it.
TRIES = 5
_PAUSE_S = 2.0
#: Of a job's limit. Slurm looks at limits twice a minute, and warns when the next look would be too late: of a shorter
#: limit while the batch script still starts, which then dies of it.
SHORTEST_LIMIT_S = 120
#: By what ended its job. Those that are "stopped" are worth typing again.
_STATES: dict[End, ErrandState] = {
    End.TIME_LIMIT: "stopped",
    End.CANCELLED: "cancelled",
    End.PREEMPTED: "stopped",
    End.NODE_FAILURE: "stopped",
    End.OUT_OF_MEMORY: "failed",
}
_AGAIN = "type it again"


@dataclass(frozen=True)
class Seen:
    """An errand and what Slurm says of it."""

    errand: Errand
    job: Job | None = None  # its last one, while Slurm has it
    unknown: str = ""  # why Slurm's word is not known, of one that is open

    @property
    def state(self) -> str:
        """In a word: ours when it has ended, else Slurm's."""
        if not self.errand.is_open:
            return self.errand.state
        if self.job is not None:
            return "held" if self.job.is_held else self.job.state.lower()
        return "unknown" if self.unknown else "on its way"


def new_errand(
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
) -> Errand:
    """Return a new command that no other process knows yet. given: sbatch options, which take precedence over the
    profile's `table`.

    Raises OpsctlError for an invalid time limit.
    """
    partition = table.internet_partition if internet and table.internet_partition else table.partition
    said = {
        "partition": partition,
        "account": table.account,
        "qos": table.qos,
        "constraint": table.constraint,
        "time": table.time,
        "nice": str(table.nice) if table.nice else None,
    }
    options = {**said, **{name: value for name, value in given.items() if value is not None}}
    try:
        limit_s = parse_duration_s(options["time"] or "")
    except ValueError:
        limit_s = 0
    if limit_s < SHORTEST_LIMIT_S:
        where = "--time" if given.get("time") is not None else "the profile's [jobs] time"
        raise OpsctlError(f"{where} {options['time']!r}: allowed are two minutes or more, as {DURATION_RULE}")
    return Errand(
        errand=new_name(),
        words=tuple(words),
        folder=folder,
        umask=umask,
        cluster=cluster,
        options=tuple((name, value) for name, value in options.items() if value is not None),
        limit_s=limit_s,
        goes_on=goes_on,
        run=run,
        asked_at=now(),
        jobs=(ErrandJob(asked_at=now()),),
    )


def script_of(place: Errands, errand: Errand) -> str:
    """Return the batch script of the command's newest job. Raises RunFileError for a value that no script can hold."""
    return errand_script(
        ErrandRequest(
            name=errand.job_name,
            comment=errand.comment,
            errand=errand.errand,
            number=len(errand.jobs),
            options=errand.options,
            limit_s=errand.limit_s,
            output=str(place.output(errand.errand)),
            cluster=errand.cluster,
            python=sys.executable,
            locale=os.environ.get("LC_ALL", ""),
        )
    )


def tracked(errand: Errand) -> TrackedJob:
    """Return the submission of its last job."""
    return TrackedJob(errand.sent, errand.last.asked_at, errand.last.job_id)


def start(place: Errands, client: SlurmClient, errand: Errand) -> Errand:
    """Submit the first job of a new errand; return the errand with the job's id.

    Raises OpsctlError where the same is under way. Where Slurm refuses, nothing is left of it.
    """
    script = script_of(place, errand)
    with place.locked("start a job"):
        _refuse_two(place, client, errand)
        place.forget_old()
        place.write(errand)
        try:
            job_id = _send(client, errand, script)
        except Undecided:
            raise
        except Absent:
            place.write(errand.ended("lost", "Slurm did not answer when it was asked to take it"))
            raise
        except SlurmError:
            place.forget(errand.errand)
            raise
        errand = errand.with_last(job_id=job_id)
        with contextlib.suppress(OSError):  # the next `settle` finds its id in the queue
            place.write(errand)
    return errand


def start_next(
    place: Errands, client: SlurmClient, errand: Errand, pause: Callable[[float], None] = time.sleep
) -> Errand:
    """Submit an errand's next job. The caller, its last job, holds the lock. Raises SlurmError, OSError."""
    errand = msgspec.structs.replace(errand, jobs=(*errand.jobs, ErrandJob(asked_at=now())))
    place.write(errand)
    script = script_of(place, errand)
    for tried in range(TRIES):
        try:
            errand = errand.with_last(job_id=_send(client, errand, script))
            break
        except Undecided:
            break  # should Slurm have it, it finds itself on record
        except Absent:
            if tried == TRIES - 1:
                raise
            pause(_PAUSE_S)
    place.write(errand)
    return errand


def check(
    place: Errands, wanted: Sequence[Errand], client_of: Callable[[Cluster], SlurmClient]
) -> tuple[list[Seen], str]:
    """Return the states of `wanted`, and why not all of them are known; a cluster without an answer hides no other's.

    Closes what has ended, under the lock, which is not taken where nothing is open. Raises OpsctlError, OSError.
    """
    seen = {one.errand: Seen(one) for one in wanted}
    problems: list[str] = []
    for cluster in dict.fromkeys(one.cluster for one in wanted if one.is_open):
        own = [one for one in wanted if one.cluster == cluster]
        try:
            with place.locked("look at the jobs"):
                found = settle(place, own, client_of)
        except SlurmError as error:
            found = [Seen(place.read(one.errand) or one, unknown=str(error)) for one in own]
            problems.append(str(error))
        seen.update((one.errand.errand, one) for one in found)
    return list(seen.values()), "; ".join(dict.fromkeys(problems))


def settle(place: Errands, wanted: Sequence[Errand], client_of: Callable[[Cluster], SlurmClient]) -> list[Seen]:
    """Return the states of `wanted` by Slurm's word, and close what has ended. The caller holds the lock.

    Raises SlurmError, OSError.
    """
    seen = {one.errand: Seen(one) for one in wanted}
    open_ones = [one for one in wanted if one.is_open]
    for cluster in dict.fromkeys(one.cluster for one in open_ones):
        seen.update(_settle_on(place, client_of(cluster), [one for one in open_ones if one.cluster == cluster]))
    return list(seen.values())


def _settle_on(place: Errands, client: SlurmClient, wanted: Sequence[Errand]) -> dict[str, Seen]:
    known: dict[str, Errand] = {}

    def read_open() -> dict[str, TrackedJob]:
        known.update((one.errand, place.read(one.errand) or one) for one in wanted)
        return {name: tracked(one) for name, one in known.items() if one.is_open}

    answers = tracked_job.settle(client, read_open, [account_name()])
    return {name: _seen(place, one, answers.get(name, Answer())) for name, one in known.items()}


def _seen(place: Errands, errand: Errand, answer: Answer) -> Seen:
    if errand.is_newer:
        return Seen(errand, answer.job, unknown="a newer opsctl wrote it")
    return Seen(_settled(place, errand, answer), answer.job)


def _settled(place: Errands, errand: Errand, answer: Answer) -> Errand:
    if answer.job is not None:
        changed = errand if errand.last.job_id else errand.with_last(job_id=answer.job.job_id)
    elif answer.end is not None:
        changed = _closed(errand, answer.end)
    else:
        changed = errand.ended("lost", f"{answer.lost}: {_AGAIN}") if answer.lost else errand
    if changed != errand:
        place.write(changed)
    return changed


def _closed(errand: Errand, end: JobEnd) -> Errand:
    word = job_outcome(end)
    if word.end is None and end.signal == signal.SIGUSR1:  # it ends only a batch script that does not ignore it yet
        return errand.ended("stopped", f"Slurm warned it of its limit before it had begun: {_AGAIN}", word.exit_code)
    state = ended_state(word, _STATES, "done", "failed")
    details = f"{word.said}, and no further job continues it: {_AGAIN}" if state == "stopped" else word.said
    return errand.ended(state, details, (word.exit_code or None) if word.end is not None else word.exit_code)


def _refuse_two(place: Errands, client: SlurmClient, errand: Errand) -> None:
    def key(one: Errand) -> tuple[object, ...]:
        return one.words, one.folder, one.cluster

    same = [one for one in place.all() if one.is_open and key(one) == key(errand)]
    for one in settle(place, same, lambda _: client):
        if one.errand.is_open:
            job = f"job {one.errand.last.job_id}, " if one.errand.last.job_id else ""
            raise OpsctlError(
                f"the same is under way since {iso(one.errand.asked_at)} ({job}{one.state}): opsctl jobs logs "
                f"{one.errand.errand} shows it, opsctl jobs cancel {one.errand.errand} ends it"
            )


def _send(client: SlurmClient, errand: Errand, script: str) -> int:
    return tracked_job.send(client, script, tracked(errand), advice=f"opsctl jobs says what became of {errand.errand}")
