"""Which jobs are a run's, as its records say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.run.config.job_comment import JobComment
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import Chain, read_chains, run_id_among
from opsctl.run.state.identity import place_of, read_run_id
from opsctl.slurm.job_match import Match, Sent, match, sent_about
from opsctl.slurm.types import Job


@dataclass(frozen=True)
class Recorded:
    """A run's submissions so far."""

    run_id: str | None = None
    chains: tuple[Chain, ...] = ()

    def own(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the run's among `jobs`, whatever their names are and whoever submitted them.

        A job is the run's when its comment has the run's id. Without a comment of ours it is a recorded chain's when
        id, owner, name, work folder and time of submission all agree. `jobs` are everybody's: a colleague may have
        submitted one by hand.
        """
        jobs = list(jobs)
        run_id = self.run_id or run_id_among(self.chains, jobs)
        of_run = Sent(comment=_comment(run_id))
        by_id = {chain.chain: _sent(chain, run_id) for chain in self.chains}
        return [job for job in jobs if match(job, by_id.get(job.array_job_id, of_run)) is Match.OURS]

    def sent(self, array_job_id: int, user: str) -> Sent:
        """Return what is recorded of the newest chain with that id; of a job without one, the run and its owner."""
        chain = next((one for one in reversed(self.chains) if one.chain == array_job_id), None)
        return _sent(chain, self.run_id) if chain is not None else Sent(_comment(self.run_id), user)


def recorded(paths: RunPaths) -> Recorded:
    """Return what is recorded; empty before the first submit, and in a copy, whose records are another run's."""
    if place_of(paths).is_another_runs:
        return Recorded()
    return Recorded(read_run_id(paths), _named(paths, read_chains(paths)))


def _named(paths: RunPaths, chains: Sequence[Chain]) -> tuple[Chain, ...]:
    """`chains`, of which an earlier release recorded no name and folder, with those of the newest revision."""
    if all(chain.name for chain in chains):
        return tuple(chains)
    # Only a run that an earlier release submitted needs this, and a revision takes long to load.
    from opsctl.run.state.revisions import newest_whole

    try:
        newest = newest_whole(paths)
    except (OSError, OpsctlError):
        newest = None
    if newest is None:
        return tuple(chains)
    name, folder = newest.file.run.name, str(newest.run_file.parent)
    named = (chain if chain.name else msgspec.structs.replace(chain, name=name, work_dir=folder) for chain in chains)
    return tuple(named)


def _comment(run_id: str | None) -> str:
    return JobComment.of_run(run_id) if run_id else ""


def _sent(chain: Chain, run_id: str | None) -> Sent:
    return Sent(_comment(run_id), chain.user, chain.name, chain.work_dir, *sent_about(chain.submitted_at))
