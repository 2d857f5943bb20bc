"""What is recorded of a run's submissions: whose jobs to ask Slurm for, and which of them are the run's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from opsctl.control.chains import Chain, jobs_of_run, read_chains, read_run_id
from opsctl.runs.paths import RunPaths
from opsctl.slurm.types import Job


@dataclass(frozen=True)
class Recorded:
    """A run's submissions so far."""

    run_id: str | None = None
    chains: tuple[Chain, ...] = ()
    submitting: str | None = None  # who is submitting now, or was cut off at it

    @property
    def submitters(self) -> set[str]:
        """The accounts whose jobs may be the run's."""
        return {chain.user for chain in self.chains} | ({self.submitting} if self.submitting else set())

    def own(self, jobs: Iterable[Job]) -> list[Job]:
        """The run's among `jobs`."""
        return jobs_of_run(jobs, self.run_id, self.chains)


def recorded(paths: RunPaths) -> Recorded:
    """What is recorded; empty before the first submit."""
    return Recorded(read_run_id(paths), tuple(read_chains(paths)), _submitting(paths))


def _submitting(paths: RunPaths) -> str | None:
    try:
        value = json.loads((paths.state / "submitting.json").read_bytes())
    except (OSError, ValueError):
        return None
    user = value.get("user") if isinstance(value, dict) else None
    return user if isinstance(user, str) else None
