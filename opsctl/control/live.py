"""What of a run is in the queue now, and why nothing may be started beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.account import account_name
from opsctl.attempts.events import read as read_attempts
from opsctl.attempts.unseen import Unseen, sees_others, unseen
from opsctl.checkpoints.inventory import last_checkpoint
from opsctl.checkpoints.progress import is_finished
from opsctl.control import overlap
from opsctl.errors import OpsctlError
from opsctl.records import chains, kill_switch
from opsctl.records.own_jobs import recorded
from opsctl.records.revisions import newest, slurm_part
from opsctl.records.state_files import read_state
from opsctl.runs.expanded import ExpandedRun
from opsctl.runs.paths import RunPaths
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.commands import client_for
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
    if not _cut_off(paths, queue, client):
        chains.settle_submitting(paths, queue)
    return _seen(paths, cluster, queue, client)


def look(paths: RunPaths, cluster: Cluster, client: SlurmClient) -> Seen:
    """Look at the queue only: nothing is settled and no lock needed."""
    return _seen(paths, cluster, client.jobs(), client)


def refuse_to_start(run: ExpandedRun) -> None:
    """Raise OpsctlError when tasks of `run` would leave at once: it is finished, or its kill switch triggered."""
    paths, name = run.paths, run.file.run.name
    checkpoint = last_checkpoint(paths.checkpoints)
    if checkpoint is not None and is_finished(run.options, checkpoint):
        raise OpsctlError(
            f"{name} is finished: {checkpoint.folder.name} has consumed {checkpoint.consumed_train_samples} samples; "
            "to train on, raise train_samples or train_iters in the run file"
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
    """The [slurm] keys whose published value the queued tasks among `live` have and `run` changes."""
    return fixed_values(run) if any(job.is_pending for job in live) else []


def fixed_values(run: ExpandedRun) -> list[str]:
    """The [slurm] keys that Slurm fixes at submission and `run` has changed since the newest revision."""
    published = newest(run.paths)
    if published is None:
        return []
    now, then = slurm_part(run.file), published.slurm
    return [f"[slurm] {key}" for key in now if now[key] != then.get(key)]


def _other_cluster(paths: RunPaths, cluster: Cluster) -> Cluster | None:
    """The cluster the run was submitted to before, when that is another one which still exists."""
    remembered = read_state(paths.output, paths.cluster, Cluster)
    if remembered is None or remembered.slurm_conf == cluster.slurm_conf:
        return None
    if remembered.slurm_conf and not Path(remembered.slurm_conf).exists():
        return None
    return remembered


def _seen(paths: RunPaths, cluster: Cluster, queue: Sequence[Job], client: SlurmClient) -> Seen:
    hidden = unseen(chains.read_chains(paths), lambda: read_attempts(paths), queue, client)
    return Seen(queue, _of_run(paths, cluster, queue), (*_cut_off(paths, queue, client), *hidden))


def _cut_off(paths: RunPaths, queue: Sequence[Job], client: SlurmClient) -> list[Unseen]:
    """Somebody else's submission that was cut off, where nobody here can see whether Slurm has it."""
    chain = chains.read_submitting(paths)
    if chain is None or chain.user == account_name() or sees_others(queue) or not client.hides_others_jobs():
        return []
    return [Unseen(0, chain.user)]


def _of_run(paths: RunPaths, cluster: Cluster, queue: Sequence[Job]) -> list[Job]:
    known = recorded(paths)
    other = _other_cluster(paths, cluster)
    if other is not None:
        elsewhere = known.own(client_for(other).jobs())
        if elsewhere:
            where = other.name or other.slurm_conf or "of this machine"
            raise OpsctlError(
                f"the run is live on cluster {where}: {overlap.describe(elsewhere)}; "
                "cancel it there, or go on there without --cluster"
            )
    return known.own(queue)
