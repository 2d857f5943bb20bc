"""Which jobs are a run's, as its records say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opsctl.records.chains import Chain, jobs_of_run, read_chains, read_run_id
from opsctl.runs.paths import RunPaths
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.types import Job


@dataclass(frozen=True)
class Recorded:
    """A run's submissions so far."""

    run_id: str | None = None
    chains: tuple[Chain, ...] = ()

    def own(self, jobs: Iterable[Job]) -> list[Job]:
        """The run's among `jobs`, which are to be everybody's: a colleague may have sent one off by hand."""
        return jobs_of_run(jobs, self.run_id, self.chains)

    def ask(self, slurm: SlurmClient) -> list[Job]:
        """The run's jobs in the queue, by one question; by none when nothing was ever submitted. Raises SlurmError."""
        return self.own(slurm.jobs()) if self.run_id else []


def recorded(paths: RunPaths) -> Recorded:
    """What is recorded; empty before the first submit."""
    return Recorded(read_run_id(paths), tuple(read_chains(paths)))
