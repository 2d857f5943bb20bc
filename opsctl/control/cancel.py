"""Cancelling a run's jobs: the owner's own. Others' are named, with what a group member can do about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.account import account_name
from opsctl.control import live, overlap
from opsctl.control.submit import LOCK_WAIT_S
from opsctl.errors import OpsctlError
from opsctl.records.state_files import locked
from opsctl.runs.paths import RunPaths
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.commands import client_for
from opsctl.slurm.states import State
from opsctl.slurm.types import Job


@dataclass(frozen=True)
class Cancelled:
    """What was, or with a dry run would be, cancelled, and what was left to its owner."""

    jobs: tuple[Job, ...]
    others: tuple[Job, ...]


def cancel(paths: RunPaths, name: str, cluster: Cluster, queued_only: bool = False, dry_run: bool = False) -> Cancelled:
    """Cancel the caller's jobs of a run, or only those not started. Raises OpsctlError when all of them are others'."""
    if dry_run or not paths.state.is_dir():
        client = client_for(cluster)
        return _chosen(live.look(paths, cluster, client).live, name, queued_only)
    # Nobody may submit between the look and the cancelling.
    with locked(paths.lock, LOCK_WAIT_S, f"cancel {name}"):
        client = client_for(cluster)
        chosen = _chosen(live.settle_and_look(paths, cluster, client).live, name, queued_only)
        client.cancel(overlap.live_arrays(chosen.jobs), pending_only=queued_only)
    return chosen


def _chosen(jobs: Sequence[Job], name: str, queued_only: bool) -> Cancelled:
    me = account_name()
    meant = [job for job in jobs if job.state != State.COMPLETING and (job.is_pending or not queued_only)]
    mine = tuple(job for job in meant if job.user == me)
    others = tuple(job for job in meant if job.user != me)
    if others and not mine:
        raise OpsctlError(f"{name}: {advice(others)}")
    return Cancelled(mine, others)


def advice(others: tuple[Job, ...]) -> str:
    """Whose they are and how a group member stops them."""
    return (
        f"not yours to cancel: {overlap.describe(others)}; "
        "opsctl kill-switch trigger makes the training save and leave, and queued tasks leave at their start"
    )
