"""Whether a lease that somebody has is over, as far as attempts and Slurm say. The heartbeat says the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opsctl.run.attempts.close_lost import closings, holds, may_be_of
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt, read
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import recorded
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.types import Job
from trainer.formats.attempt.lease import Holder


def over_on_record(holder: Holder, attempts: Iterable[Attempt], requeued_id: int | None = None) -> str | None:
    """Why the holding is over as far as `attempts` say: its job's own word, or Slurm's; None where they say nothing.

    That Slurm does not know the job is none: it may be another cluster's, or hidden from us. `requeued_id`: of the job
    that asks, where Slurm has started it anew, so that what its earlier life holds is over. Pure.
    """
    if requeued_id is not None and holder.job_id == requeued_id:
        return "Slurm has started the job anew"
    attempt = attempt_of(holder, attempts)
    if attempt is None or attempt.reason is None or attempt.reason == Ending.UNKNOWN:
        return None
    return f"its attempt has ended: {attempt.reason}"


def over_by_slurm(holder: Holder, paths: RunPaths, client: SlurmClient, queue: Sequence[Job], cluster: str) -> bool:
    """The same after asking Slurm how the holder's job ended, where `queue` does not have it. Writes nothing.

    cluster: Slurm's name of the one that is asked, as far as that is known. Raises SlurmUnreachable.
    """
    attempts = read(paths)
    attempt = attempt_of(holder, attempts)
    if attempt is not None and attempt.is_open and may_be_of(attempt, cluster):
        job = next((job for job in queue if job.job_id == attempt.job_id), None)
        if holds(attempt, job, recorded(paths)):
            return False
        ends = client.ends({attempt.job_id})
        attempts = closings([attempt], attempts, {job.job_id: job} if job else {}, ends, paths, "")
    return over_on_record(holder, attempts) is not None


def attempt_of(holder: Holder, attempts: Iterable[Attempt]) -> Attempt | None:
    """The attempt for which the lease was taken; None while it is not on record."""
    return next((one for one in attempts if one.id == holder.attempt), None)
