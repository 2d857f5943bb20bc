"""Cancelling a run's jobs: the owner's own. Others' are named, with what a group member can do about them."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import locked
from opsctl.jobs.control import live_jobs, overlap
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE, Unseen
from opsctl.run.attempts.hidden_jobs import describe as describe_unseen
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import record_cancel
from opsctl.run.state.group_folder import LOCK_WAIT_S, explained_disk_errors
from opsctl.run.state.identity import refuse_a_copy
from opsctl.slurm.backends import client_for
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.states import State
from opsctl.slurm.types import Job


@dataclass(frozen=True)
class Cancelled:
    """The cancelled jobs, or with a dry run the jobs that would be, and those left to their owners."""

    jobs: tuple[Job, ...]
    others: tuple[Job, ...]
    unseen: tuple[Unseen, ...] = ()  # others' chains that may be queued and are not shown here


def cancel(paths: RunPaths, name: str, cluster: Cluster, queued_only: bool = False, dry_run: bool = False) -> Cancelled:
    """Cancel the caller's jobs of a run, or only those not started. Raises OpsctlError when all of them are others', or
    the original's of this copy.
    """
    refuse_a_copy(paths, f"cancel {name}")
    if dry_run or not paths.state.is_dir():
        client = client_for(cluster)
        return _chosen(live_jobs.snapshot(paths, cluster, client), name, queued_only)
    # The lock prevents a submit between the check and the cancelling.
    undone = "nothing was cancelled, for refill must find it on record; scancel still works"
    with explained_disk_errors(paths, undone), locked(paths.output, paths.lock, LOCK_WAIT_S, f"cancel {name}"):
        client = client_for(cluster)
        chosen = _chosen(live_jobs.settled(paths, cluster, client), name, queued_only)
        if chosen.jobs:
            # Recorded before the jobs go, so that a reader of an empty queue finds it.
            record_cancel(paths, [job.display_id for job in chosen.jobs], queued_only)
        client.cancel(overlap.live_arrays(chosen.jobs), pending_only=queued_only)
    return chosen


def _chosen(live: live_jobs.LiveJobs, name: str, queued_only: bool) -> Cancelled:
    me = account_name()
    meant = [job for job in live.jobs if job.state != State.COMPLETING and (job.is_pending or not queued_only)]
    mine = tuple(job for job in meant if job.user == me)
    others = tuple(job for job in meant if job.user != me)
    if others and not mine:
        raise OpsctlError(f"{name}: {advice(others)}")
    return Cancelled(mine, others, tuple(live.unseen))


#: How a group member stops what is others'.
_STOP = "opsctl kill-switch trigger makes the training save and leave, and queued tasks leave at their start"


def advice(others: tuple[Job, ...]) -> str:
    """Return who owns these jobs and how a group member stops them."""
    return f"not yours to cancel: {overlap.describe(others)}; {_STOP}"


def advice_on_unseen(unseen: tuple[Unseen, ...]) -> str:
    """Return the same for jobs that cannot be seen."""
    return f"{CANNOT_SEE}: {describe_unseen(unseen)} may be queued or running; {_STOP}"
