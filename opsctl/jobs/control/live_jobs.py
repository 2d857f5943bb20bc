"""The live jobs of a run, and the reasons why no other may start next to them.

The queue is that of one Slurm, as one account sees it. The lease is in the run's folder, the same for all readers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import locked
from opsctl.jobs.control import overlap, send_chain
from opsctl.run.attempts.close_lost import attempt_of, holds, may_be_of, over_by_slurm
from opsctl.run.attempts.events import read as read_attempts
from opsctl.run.attempts.hidden_jobs import Unseen, sees_others, unseen
from opsctl.run.checkpoints.inventory import is_finished, last_checkpoint
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import RunFile
from opsctl.run.state import chains, kill_switch, lease
from opsctl.run.state.chains import recorded
from opsctl.run.state.chosen_cluster import ClusterRecord, is_same_cluster, reached, read_record, record_of
from opsctl.run.state.group_folder import LOCK_WAIT_S, explained_disk_errors, open_output
from opsctl.run.state.identity import before_the_move, bind, is_here, read_run_id, settled_identity
from opsctl.run.state.revisions import newest_whole, slurm_part
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient, SlurmReader
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.types import Job
from trainer.formats.attempt.lease import Holder


@dataclass(frozen=True)
class LiveJobs:
    """A snapshot of the queue."""

    queue: Sequence[Job] = ()  # everybody's
    jobs: Sequence[Job] = ()  # the run's, of all users
    unseen: Sequence[Unseen] = ()  # others' chains that may be queued and are not shown here


@contextlib.contextmanager
def run_lock(paths: RunPaths, what: str, file: RunFile | None = None) -> Iterator[tuple[str, ...]]:
    """Hold the run's lock while what is queued of it changes; yield warnings about its folder.

    file: by which the output folder is made, or opened to its group; None: the folder stays as it is.
    """
    with explained_disk_errors(paths):
        closed = open_output(paths, file.run.group) if file is not None else ()
        with locked(paths.output, paths.lock, LOCK_WAIT_S, what), settled_identity(paths) as news:
            yield (*closed, *news)


def settled(paths: RunPaths, cluster: Cluster, client: SlurmClient) -> LiveJobs:
    """Return a snapshot, after settling a submission that was cut off before. The caller holds the run's lock.

    Another user's submission stays open where their jobs are hidden. Raises SlurmUnreachable.
    """
    queue = client.jobs()
    if read_run_id(paths) is None:  # only the run's jobs still have it
        found = chains.run_id_among(chains.read_chains(paths), queue)
        if found is not None:
            bind(paths, found)
    if not _cut_off(paths, queue, client):
        send_chain.settle(paths, queue)
    return _live(paths, cluster, queue, client)


def snapshot(paths: RunPaths, cluster: Cluster, client: SlurmReader) -> LiveJobs:
    """Return a snapshot only: nothing is settled, and no lock is needed."""
    return _live(paths, cluster, client.jobs(), client)


def refuse_to_start(run: ExpandedRun) -> None:
    """Raise OpsctlError when tasks of `run` would leave at once: it is finished or stopped."""
    paths, name = run.paths, run.file.run.name
    checkpoint = last_checkpoint(paths.checkpoints)
    if checkpoint is not None and is_finished(run.options, checkpoint):
        if run.file.program is None:
            reached = f"has consumed {checkpoint.consumed_train_samples} samples"
            length = "train_samples, train_tokens or train_iters"
        else:
            reached, length = "has all its steps", "[program] steps and the length in the program's arguments"
        raise OpsctlError(
            f"{name} is finished: {checkpoint.folder.name} {reached}; to train on, raise {length} in the run file"
        )
    limit = run.options.exit_samples
    if checkpoint is not None and limit is not None and checkpoint.consumed_train_samples >= limit:
        raise OpsctlError(
            f"{name} has reached exit_samples = {limit}: {checkpoint.folder.name} has consumed "
            f"{checkpoint.consumed_train_samples}, so its tasks would exit at once; increase exit_samples, or remove it"
        )
    switch = kill_switch.state(paths)
    if switch.is_triggered:
        raise OpsctlError(
            f"the kill switch of {name} is triggered {switch.describe()}: its tasks would leave at once; "
            "opsctl kill-switch deactivate first"
        )


def refuse_what_slurm_has_fixed(run: ExpandedRun, live: Sequence[Job]) -> None:
    """Raise OpsctlError when publishing `run` would contradict what Slurm has fixed for tasks already queued."""
    changed = fixed_changes(run, live)
    if changed:
        queued = [job for job in live if job.is_pending]
        raise OpsctlError(
            f"{', '.join(changed)} changed, which Slurm has fixed for {overlap.describe(queued)}; "
            "opsctl revise --resubmit replaces them"
        )


def fixed_changes(run: ExpandedRun, live: Sequence[Job]) -> list[str]:
    """Return the keys that `run` changes and whose published value is fixed for the queued tasks among `live`."""
    queued = {job.array_job_id for job in live if job.is_pending}
    return [*_published_values(run), *_other_output(run, queued)] if queued else []


def fixed_values(run: ExpandedRun) -> list[str]:
    """Return the keys fixed by Slurm that `run` changed since the newest complete revision or chain."""
    return [*_published_values(run), *_other_output(run)]


def what_to_wait_for(
    paths: RunPaths, name: str, live: LiveJobs, cluster: Cluster, client: SlurmClient, after: str | None
) -> tuple[str, ...]:
    """Return the dependencies of a new chain of run `name`: those of `overlap.what_to_wait_for`, and the lease's
    holder.

    Raises OpsctlError if it would or might run at the same time as another job, UsageError if `--after` is not a job.
    """
    found = _found(paths, name)
    unmarked = _unmarked(paths, found.holder, live)
    waits = overlap.what_to_wait_for((*live.jobs, *unmarked), after, name, live.unseen)
    holder = found.holder
    if holder is None or any(job.job_id == holder.job_id for job in (*live.jobs, *unmarked)):
        return waits
    attempt = attempt_of(holder, read_attempts(paths))
    chain = attempt.array_job_id if attempt else None
    here = record_of(cluster, client).name or ""
    is_elsewhere = attempt is not None and not may_be_of(attempt, here)
    if not is_elsewhere and any(one.array_job_id in (chain, holder.job_id) for one in live.unseen):
        return waits
    if over_by_slurm(holder, paths, client, live.queue, here):
        return waits
    if attempt is not None and is_elsewhere:
        what = f"it is a job of cluster {attempt.cluster}: wait for its end, or cancel it there"
    elif after == overlap.AUTO and holder.job_id is not None and not _is_anothers(holder, live):
        return (*waits, str(holder.job_id))
    else:
        what = "wait for its end, or queue behind it with opsctl submit --after auto"
    raise OpsctlError(f"{name} is being trained by {found.told()}, which the queue does not show here; {what}")


def unseen_writer(paths: RunPaths, live: LiveJobs, cluster: Cluster, client: SlurmClient) -> str:
    """Return who trains the run according to its lease, if the queue does not show the job; empty if no job does.

    Raises OpsctlError if this cannot be seen, SlurmUnreachable.
    """
    found = _found(paths, str(paths.output))
    holder = found.holder
    if holder is None or any(job.job_id == holder.job_id for job in (*live.jobs, *_unmarked(paths, holder, live))):
        return ""
    here = record_of(cluster, client).name or ""
    return "" if over_by_slurm(holder, paths, client, live.queue, here) else found.told()


def _published_values(run: ExpandedRun) -> list[str]:
    published = newest_whole(run.paths)
    if published is None:
        return []
    now, then = slurm_part(run.file), published.slurm
    changed = [f"[slurm] {key}" for key in now if now[key] != then.get(key)]
    # The script that Slurm has says whose revisions its tasks take: what members can edit must not.
    return changed if run.file.run.publish == published.file.run.publish else [*changed, "[run] publish"]


def _other_output(run: ExpandedRun, only: Collection[int] | None = None) -> list[str]:
    """Return the key of the output folder when chains (`only` those) expect it elsewhere."""
    meant = [chain for chain in recorded(run.paths).chains if only is None or chain.chain in only]
    before = before_the_move(run.paths) if meant else ""
    return [] if all(is_here(chain.output or before, run.paths) for chain in meant) else ["[run] output"]


def _other_cluster(paths: RunPaths, cluster: Cluster, client: SlurmReader) -> ClusterRecord | None:
    """Return the cluster of the last submission when it is another one that still exists."""
    remembered = read_record(paths)
    if remembered is None or remembered.slurm_conf == (cluster.slurm_conf or None):
        return None
    if remembered.slurm_conf and not Path(remembered.slurm_conf).exists():
        return None
    return None if is_same_cluster(remembered, record_of(cluster, client)) else remembered


def _live(paths: RunPaths, cluster: Cluster, queue: Sequence[Job], client: SlurmReader) -> LiveJobs:
    hidden = unseen(recorded(paths).chains, lambda: read_attempts(paths), queue, client)
    return LiveJobs(queue, _of_run(paths, cluster, client, queue), (*_cut_off(paths, queue, client), *hidden))


def _cut_off(paths: RunPaths, queue: Sequence[Job], client: SlurmReader) -> list[Unseen]:
    """Return another user's interrupted submission, if this user cannot see whether Slurm has it."""
    chain = chains.read_submitting(paths)
    if chain is None or chain.user == account_name() or sees_others(queue) or not client.hides_others_jobs():
        return []
    return [Unseen(0, chain.user)]


def _of_run(paths: RunPaths, cluster: Cluster, client: SlurmReader, queue: Sequence[Job]) -> list[Job]:
    known = recorded(paths)
    other = _other_cluster(paths, cluster, client)
    if other is not None:
        elsewhere = known.own(client_for(reached(other)).jobs())
        if elsewhere:
            raise OpsctlError(
                f"the run is live on {other.describe()}: {overlap.describe(elsewhere)}; "
                "cancel it there, or continue there: without --cluster, and without another SLURM_CONF"
            )
    return known.own(queue)


def _found(paths: RunPaths, name: str) -> lease.Seen:
    """Return the lease; free where its holder is silent, which the next task settles."""
    try:
        found = lease.look(paths)
    except OSError as error:
        where = error.filename or paths.lease
        raise OpsctlError(f"who trains {name} cannot be seen: {where}: {error.strerror}; fix that first") from None
    return lease.Seen() if found.is_silent else found


def _is_anothers(holder: Holder, live: LiveJobs) -> bool:
    """Return whether another job has the holder's id now, as after the controller lost its state."""
    return any(holder.job_id in (job.job_id, job.array_job_id) for job in live.queue)


def _unmarked(paths: RunPaths, holder: Holder | None, live: LiveJobs) -> tuple[Job, ...]:
    """Return the holder's jobs that nothing else shows to be the run's, as after its id was lost."""
    attempt = attempt_of(holder, read_attempts(paths)) if holder is not None else None
    if holder is None or attempt is None:
        return ()
    known = recorded(paths)
    own = (job for job in live.queue if job.job_id == holder.job_id and job.user == holder.user)
    array = next((job.array_job_id for job in own if holds(attempt, job, known)), None)
    return tuple(job for job in live.queue if job.array_job_id == array and job not in live.jobs)
