"""What of a run is in the queue now, and why nothing may be started beside it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.jobs.control import overlap
from opsctl.run.attempts.events import read as read_attempts
from opsctl.run.attempts.hidden_jobs import Unseen, sees_others, unseen
from opsctl.run.checkpoints.inventory import is_finished, last_checkpoint
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import chains, kill_switch
from opsctl.run.state.chains import recorded
from opsctl.run.state.chosen_cluster import ClusterRecord, is_same_cluster, reached, read_record, record_of
from opsctl.run.state.identity import before_the_move, bind, is_here, read_run_id
from opsctl.run.state.revisions import newest_whole, slurm_part
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient, SlurmLooks
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.types import Job


@dataclass(frozen=True)
class Seen:
    """One look at the queue."""

    queue: Sequence[Job]  # everybody's
    live: Sequence[Job]  # the run's, whoever's they are
    unseen: Sequence[Unseen] = ()  # others' chains that may be queued and are not shown here


def settle_and_look(paths: RunPaths, cluster: Cluster, client: SlurmClient) -> Seen:
    """Look at the queue, and settle a submission that was cut off before. The caller holds the run's lock.

    Somebody else's stays open where his jobs are hidden. Raises SlurmUnreachable when the queue cannot be seen.
    """
    queue = client.jobs()
    _find_lost_id(paths, queue)
    if not _cut_off(paths, queue, client):
        chains.settle_submitting(paths, queue)
    return _seen(paths, cluster, queue, client)


def look(paths: RunPaths, cluster: Cluster, client: SlurmLooks) -> Seen:
    """Look at the queue only: nothing is settled and no lock needed."""
    return _seen(paths, cluster, client.jobs(), client)


def refuse_to_start(run: ExpandedRun) -> None:
    """Raise OpsctlError when tasks of `run` would leave at once: it is finished or stopped."""
    paths, name = run.paths, run.file.run.name
    checkpoint = last_checkpoint(paths.checkpoints)
    if checkpoint is not None and is_finished(run.options, checkpoint):
        raise OpsctlError(
            f"{name} is finished: {checkpoint.folder.name} has consumed {checkpoint.consumed_train_samples} samples; "
            "to train on, raise train_samples, train_tokens or train_iters in the run file"
        )
    limit = run.options.exit_samples
    if checkpoint is not None and limit is not None and checkpoint.consumed_train_samples >= limit:
        raise OpsctlError(
            f"{name} has come to its exit_samples, {limit}: {checkpoint.folder.name} has consumed "
            f"{checkpoint.consumed_train_samples}, so its tasks would leave at once; raise it, or leave it out"
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
    """The keys whose published value the queued tasks among `live` have and `run` changes."""
    queued = {job.array_job_id for job in live if job.is_pending}
    return [*_published_values(run), *_other_output(run, queued)] if queued else []


def fixed_values(run: ExpandedRun) -> list[str]:
    """The keys that Slurm fixes at submission and `run` has changed since the newest whole revision, or a chain."""
    return [*_published_values(run), *_other_output(run)]


def _published_values(run: ExpandedRun) -> list[str]:
    published = newest_whole(run.paths)
    if published is None:
        return []
    now, then = slurm_part(run.file), published.slurm
    changed = [f"[slurm] {key}" for key in now if now[key] != then.get(key)]
    # The script that Slurm has says whose revisions its tasks take: what members can edit must not.
    return changed if run.file.run.publish == published.file.run.publish else [*changed, "[run] publish"]


def _other_output(run: ExpandedRun, only: Collection[int] | None = None) -> list[str]:
    """The output folder, when chains (`only` those) look for the run where it no longer is."""
    meant = [chain for chain in recorded(run.paths).chains if only is None or chain.chain in only]
    before = before_the_move(run.paths) if meant else ""
    return [] if all(is_here(chain.output or before, run.paths) for chain in meant) else ["[run] output"]


def _find_lost_id(paths: RunPaths, queue: Sequence[Job]) -> None:
    """Write the run's id anew, where only its jobs still have it."""
    if read_run_id(paths) is None:
        found = chains.run_id_among(chains.read_chains(paths), queue)
        if found is not None:
            bind(paths, found)


def _other_cluster(paths: RunPaths, cluster: Cluster, client: SlurmLooks) -> ClusterRecord | None:
    """The cluster the run was submitted to before, when that is another one which still exists."""
    remembered = read_record(paths)
    if remembered is None or remembered.slurm_conf == (cluster.slurm_conf or None):
        return None
    if remembered.slurm_conf and not Path(remembered.slurm_conf).exists():
        return None
    return None if is_same_cluster(remembered, record_of(cluster, client)) else remembered


def _seen(paths: RunPaths, cluster: Cluster, queue: Sequence[Job], client: SlurmLooks) -> Seen:
    hidden = unseen(recorded(paths).chains, lambda: read_attempts(paths), queue, client)
    return Seen(queue, _of_run(paths, cluster, client, queue), (*_cut_off(paths, queue, client), *hidden))


def _cut_off(paths: RunPaths, queue: Sequence[Job], client: SlurmLooks) -> list[Unseen]:
    """Somebody else's submission that was cut off, where nobody here can see whether Slurm has it."""
    chain = chains.read_submitting(paths)
    if chain is None or chain.user == account_name() or sees_others(queue) or not client.hides_others_jobs():
        return []
    return [Unseen(0, chain.user)]


def _of_run(paths: RunPaths, cluster: Cluster, client: SlurmLooks, queue: Sequence[Job]) -> list[Job]:
    known = recorded(paths)
    other = _other_cluster(paths, cluster, client)
    if other is not None:
        elsewhere = known.own(client_for(reached(other)).jobs())
        if elsewhere:
            raise OpsctlError(
                f"the run is live on {other.describe()}: {overlap.describe(elsewhere)}; "
                "cancel it there, or go on there without --cluster and with no other SLURM_CONF exported"
            )
    return known.own(queue)
