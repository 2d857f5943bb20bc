"""Which jobs are a run's, as its records say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from opsctl.records.chains import Chain, read_chains, read_run_id
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
        by_id = {chain.chain: chain for chain in self.chains}
        return [job for job in jobs if self._is_own(job, by_id.get(job.array_job_id))]

    def _is_own(self, job: Job, chain: Chain | None) -> bool:
        comment = parse_comment(job.comment)
        if comment is not None:
            return comment.run_id == self.run_id
        if chain is None or job.user != chain.user or job.submitted_at is None:
            return False
        return abs(job.submitted_at - chain.submitted_at) < _SAME_SUBMISSION


def recorded(paths: RunPaths) -> Recorded:
    """What is recorded; empty before the first submit."""
    return Recorded(read_run_id(paths), tuple(read_chains(paths)))
