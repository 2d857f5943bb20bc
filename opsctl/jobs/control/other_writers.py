"""Whoever trains into the run's folder though the queue does not show it as the run's, and what a new chain does then.

The queue is one Slurm's, as it shows itself to one account; the lease is in the folder, whoever looks.
"""

from __future__ import annotations

from opsctl.core.errors import OpsctlError
from opsctl.jobs.control import overlap
from opsctl.jobs.control.live_jobs import Seen
from opsctl.run.attempts.close_lost import attempt_of, holds, may_be_of, over_by_slurm
from opsctl.run.attempts.events import read
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import lease
from opsctl.run.state.chains import recorded
from opsctl.run.state.chosen_cluster import record_of
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.types import Job
from trainer.formats.attempt.lease import Holder


def what_to_wait_for(
    paths: RunPaths, name: str, seen: Seen, cluster: Cluster, client: SlurmClient, after: str | None
) -> tuple[str, ...]:
    """What a new chain of run `name` depends on: what `overlap.what_to_wait_for` says, and the lease's holder.

    Raises OpsctlError where it would run beside somebody, or nobody
    can see that, UsageError for an `--after` that is no job.
    """
    found = _found(paths, name)
    unmarked = _unmarked(paths, found.holder, seen)
    waits = overlap.what_to_wait_for((*seen.live, *unmarked), after, name, seen.unseen)
    holder = found.holder
    if holder is None or any(job.job_id == holder.job_id for job in (*seen.live, *unmarked)):
        return waits
    attempt = attempt_of(holder, read(paths))
    chain = attempt.array_job_id if attempt else None
    here = record_of(cluster, client).name or ""
    is_elsewhere = attempt is not None and not may_be_of(attempt, here)
    if not is_elsewhere and any(one.array_job_id in (chain, holder.job_id) for one in seen.unseen):
        return waits
    if over_by_slurm(holder, paths, client, seen.queue, here):
        return waits
    if attempt is not None and is_elsewhere:
        what = f"it is a job of cluster {attempt.cluster}: wait for its end, or cancel it there"
    elif after == overlap.AUTO and holder.job_id is not None and not _is_anothers(holder, seen):
        return (*waits, str(holder.job_id))
    else:
        what = "wait for its end, or chain behind it with opsctl submit --after auto"
    raise OpsctlError(f"{name} is being trained by {found.told()}, which the queue does not show here; {what}")


def unseen_writer(paths: RunPaths, seen: Seen, cluster: Cluster, client: SlurmClient) -> str:
    """Who trains the run as its lease says, where nothing in the queue shows it; empty where nobody does.

    Raises OpsctlError where nobody can see that, SlurmUnreachable.
    """
    found = _found(paths, str(paths.output))
    holder = found.holder
    if holder is None or any(job.job_id == holder.job_id for job in (*seen.live, *_unmarked(paths, holder, seen))):
        return ""
    here = record_of(cluster, client).name or ""
    return "" if over_by_slurm(holder, paths, client, seen.queue, here) else found.told()


def _found(paths: RunPaths, name: str) -> lease.Seen:
    """The lease; free where its holder is silent: the task that comes to train settles that."""
    try:
        found = lease.look(paths)
    except OSError as error:
        where = error.filename or paths.lease
        raise OpsctlError(f"who trains {name} cannot be seen: {where}: {error.strerror}; mend that first") from None
    return lease.Seen() if found.is_silent else found


def _is_anothers(holder: Holder, seen: Seen) -> bool:
    """Whether another job has the holder's id by now, as after the controller lost its state."""
    return any(holder.job_id in (job.job_id, job.array_job_id) for job in seen.queue)


def _unmarked(paths: RunPaths, holder: Holder | None, seen: Seen) -> tuple[Job, ...]:
    """The holder's jobs in the queue that nothing else shows to be the run's, as after its id was lost."""
    attempt = attempt_of(holder, read(paths)) if holder is not None else None
    if holder is None or attempt is None:
        return ()
    known = recorded(paths)
    own = (job for job in seen.queue if job.job_id == holder.job_id and job.user == holder.user)
    array = next((job.array_job_id for job in own if holds(attempt, job, known)), None)
    return tuple(job for job in seen.queue if job.array_job_id == array and job not in seen.live)
