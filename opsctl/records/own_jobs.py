"""Which jobs are a run's, as its records say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from opsctl.records.chains import Chain, read_chains, run_id_among
from opsctl.records.identity import place_of, read_run_id
from opsctl.runs.job_comment import parse_comment
from opsctl.runs.paths import RunPaths
from opsctl.slurm.types import Job

#: Ids start over on a new cluster: a job that carries no comment of ours is a chain's if submitted when that was.
_SAME_SUBMISSION = timedelta(minutes=10)


@dataclass(frozen=True)
class Recorded:
    """A run's submissions so far."""

    run_id: str | None = None
    chains: tuple[Chain, ...] = ()

    def own(self, jobs: Iterable[Job]) -> list[Job]:
        """The run's among `jobs`, whatever their names are and whoever submitted them.

        A job is the run's when its comment carries the run's id, or when its comment says nothing and it is a recorded
        chain: same id, same owner, submitted at that time. `jobs` are to be everybody's: a colleague may have sent one
        off by hand.
        """
        jobs = list(jobs)
        by_id = {chain.chain: chain for chain in self.chains}
        run_id = self.run_id or run_id_among(self.chains, jobs)
        return [job for job in jobs if _is_own(job, run_id, by_id.get(job.array_job_id))]


def recorded(paths: RunPaths) -> Recorded:
    """What is recorded; empty before the first submit, and in a copy, whose records are another run's."""
    if place_of(paths).is_another_runs:
        return Recorded()
    return Recorded(read_run_id(paths), tuple(read_chains(paths)))


def _is_own(job: Job, run_id: str | None, chain: Chain | None) -> bool:
    comment = parse_comment(job.comment)
    if comment is not None:
        return comment.run_id == run_id
    if chain is None or job.user != chain.user or job.submitted_at is None:
        return False
    return abs(job.submitted_at - chain.submitted_at) < _SAME_SUBMISSION
