"""Handing an errand's job to Slurm: on record first, found again by its comment where the answer got lost."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmError, SlurmUnasked, SlurmUnreachable
from opsctl.core.timestamps import iso, now
from opsctl.jobs.background.records import Errand, ErrandJob, Errands, new_name, parse_errand_comment
from opsctl.jobs.background.settling import settle
from opsctl.run.config.schema import JobsTable
from opsctl.run.render.background import ErrandRequest, errand_script
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.durations import DURATION_RULE, parse_duration_s
from opsctl.slurm.types import Job

#: How often a job that is to be gone on with asks anew, where Slurm answers and has not got the next one.
TRIES = 5
_PAUSE_S = 2.0
#: Of a job's limit. Slurm looks at limits twice a minute, and warns when the next look would be too late: of a shorter
#: limit while the batch script still starts, which then dies of it.
SHORTEST_LIMIT_S = 120


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
    """An errand that nobody has heard of yet. given: options of sbatch, which come before the profile's `table`.

    Raises OpsctlError for a limit that is none.
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
    """The batch script of its last job. Raises RunFileError for what no script can hold."""
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


def start(place: Errands, client: SlurmClient, errand: Errand) -> Errand:
    """Hand a new errand to Slurm; it with its job's id. Raises OpsctlError where the same is under way.

    Where Slurm refuses, nothing is left of it. Where it cannot be known whether Slurm has it, it stays on record.
    """
    script = script_of(place, errand)
    with place.locked("start a job"):
        _refuse_two(place, client, errand)
        place.forget_old()
        place.write(errand)
        try:
            job_id = _handed(client, errand, script)
        except _Undecided:
            raise
        except SlurmUnasked:
            place.forget(errand.errand)
            raise
        except SlurmUnreachable:
            place.write(errand.ended("lost", "Slurm did not answer when it was asked to take it"))
            raise
        except SlurmError:
            place.forget(errand.errand)
            raise
        errand = errand.with_last(job_id=job_id)
        with contextlib.suppress(OSError):  # Slurm has it, and the queue tells its id to whoever looks
            place.write(errand)
    return errand


def go_on(place: Errands, client: SlurmClient, errand: Errand, pause: Callable[[float], None] = time.sleep) -> Errand:
    """Hand an errand's next job to Slurm; the caller, its last job, holds the lock. Raises SlurmError, OSError."""
    going = msgspec.structs.replace(errand, jobs=(*errand.jobs, ErrandJob(asked_at=now())))
    place.write(going)
    script = script_of(place, going)
    for tried in range(TRIES):
        try:
            going = going.with_last(job_id=_handed(client, going, script))
            break
        except _Undecided:
            break  # should Slurm have it, it finds itself on record
        except SlurmUnreachable:
            if tried == TRIES - 1:
                raise
            pause(_PAUSE_S)
    place.write(going)
    return going


def job_of(errand: Errand, queue: Sequence[Job]) -> Job | None:
    """Its last job among those of the queue; what others write into their comments counts for nothing."""
    wanted = (errand.errand, len(errand.jobs))
    own = (job for job in queue if job.user == account_name())
    return next((job for job in own if parse_errand_comment(job.comment) == wanted), None)


def _refuse_two(place: Errands, client: SlurmClient, errand: Errand) -> None:
    same = [one for one in place.all() if one.is_open and _is_same(one, errand)]
    for one in settle(place, same, lambda _: client) if same else ():
        if one.errand.is_open:
            job = f"job {one.errand.last.job_id}, " if one.errand.last.job_id else ""
            raise OpsctlError(
                f"the same is under way since {iso(one.errand.asked_at)} ({job}{one.state}): opsctl jobs logs "
                f"{one.errand.errand} shows it, opsctl jobs cancel {one.errand.errand} ends it"
            )


def _is_same(one: Errand, other: Errand) -> bool:
    return (one.words, one.folder, one.cluster) == (other.words, other.folder, other.cluster)


class _Undecided(SlurmUnreachable):
    """Whether Slurm has the job cannot be known now."""


def _handed(client: SlurmClient, errand: Errand, script: str) -> int:
    """The id of its last job. Raises SlurmUnreachable where Slurm does not have it, _Undecided where nobody knows."""
    try:
        return client.submit(script)
    except SlurmUnasked:
        raise
    except SlurmUnreachable as error:
        try:
            queue = client.jobs(users=[account_name()])
        except SlurmUnreachable:
            raise _Undecided(
                "Slurm stopped answering while it was asked to take the job: whether it has it is not known; "
                f"once it answers, opsctl jobs says what became of {errand.errand}"
            ) from None
        found = job_of(errand, queue)
        if found is None:
            raise SlurmUnreachable(f"nothing was submitted, the queue does not have it: {error}") from None
        return found.job_id
