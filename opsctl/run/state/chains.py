"""The submissions of a run: its id, its chains, and a submission that may be unfinished.

`chains.jsonl` has one line per sbatch. `submitting.json` is written before sbatch and removed once its outcome is
recorded. If a command finds it, an earlier one was interrupted, and Slurm is asked for its token.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.account import account_name
from opsctl.core.files.state_files import append_state, read_lines, read_whole, remove, write_state
from opsctl.core.timestamps import iso, now
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.identity import place_of, read_run_id
from opsctl.slurm.job_match import JobComment, Match, Sent, match, parse_comment, sent_about
from opsctl.slurm.types import Job
from trainer.formats.json_text import Moment

#: What submits a chain, as its record says.
SUBMIT, REVISE, REQUEST, REFILL = "submit", "revise", "request", "refill"


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """One sbatch of a job array."""

    chain: Annotated[int, Meta(description="Job id of the array; 0 if unknown.")]
    token: Annotated[str, Meta(description="Finds the submission again among all jobs.")] = ""
    submitted_at: Annotated[Moment, Meta(description="Just before sbatch was called.")]
    user: Annotated[str, Meta(description="User who submitted it.")]
    host: Annotated[str, Meta(description="Host on which it was submitted.")] = ""
    name: Annotated[str, Meta(description="The job's name; empty if unknown.")] = ""
    work_dir: Annotated[str, Meta(description="The folder that its tasks start in; empty if unknown.")] = ""
    output: Annotated[str, Meta(description="The run's output folder then; empty if unknown.")] = ""
    revision: Annotated[str, Meta(description="Name of the newest revision then.")] = ""
    array: Annotated[str, Meta(description="The tasks, as sbatch takes them.")]
    asked: Annotated[str, Meta(description="The requested tasks, if several arrays share them.")] = ""
    after: Annotated[tuple[str, ...], Meta(description="Ids of the jobs that it waits for.")] = ()
    arguments: Annotated[tuple[str, ...], Meta(description="Trainer arguments of this chain only.")] = ()
    nodes: Annotated[int | None, Meta(description="Number of nodes of this chain only; null for the run file's.")] = (
        None
    )
    exclude: Annotated[
        str | None, Meta(description="Nodes that are kept out beside the run file's; null without any.")
    ] = None
    begin: Annotated[
        str | None, Meta(description="It starts not before this time, as sbatch takes it; null without one.")
    ] = None
    own_exclude: Annotated[
        str | None, Meta(description="All nodes that the run file and the command kept out; null if unknown.")
    ] = None
    listed: Annotated[
        str | None, Meta(description="Nodes that `opsctl exclude list` kept out at its submission; null if unknown.")
    ] = None
    how: Annotated[
        str, Meta(description="Command that submitted it: `submit`, `revise`, `request` or `refill`; empty if unknown.")
    ] = ""

    @property
    def is_somebodys_word(self) -> bool:
        """Return whether a user wanted this chain; a refill only replaces chains that a user wanted."""
        return self.how != REFILL

    @property
    def is_typed(self) -> bool:
        """Return whether `opsctl submit` made it, so that a user chose the length of its array."""
        return self.how in ("", SUBMIT)


def read_chains(paths: RunPaths) -> list[Chain]:
    """Return the run's chains, oldest first. Lines that are not chains are skipped."""
    return read_lines(paths.output, paths.chains, Chain)


def last_word(chains: Sequence[Chain]) -> Chain | None:
    """Return the newest chain that a person wanted, else the first. Attempts count from its submission."""
    return next((chain for chain in reversed(chains) if chain.is_somebodys_word), chains[0] if chains else None)


def counted_since(chains: Sequence[Chain], submitted_at: datetime) -> datetime:
    """Return the time from which attempts count against the chain submitted at `submitted_at`."""
    places = [place for place, chain in enumerate(chains) if chain.submitted_at == submitted_at]
    word = last_word(chains[: places[-1] + 1]) if places else None
    return min(word.submitted_at, submitted_at) if word is not None else submitted_at


def append_chain(paths: RunPaths, chain: Chain) -> None:
    """Record a chain that Slurm has taken."""
    append_state(paths.output, paths.chains, chain)


def new_token() -> str:
    """Return a token that identifies one submission among all jobs."""
    return secrets.token_hex(6)


def run_id_among(chains: Iterable[Chain], jobs: Iterable[Job]) -> str | None:
    """Return the id of the run that submitted `chains`, found by their tokens in the jobs' comments."""
    tokens = {chain.token for chain in chains if chain.token}
    comments = filter(None, (parse_comment(job.comment) for job in jobs))
    return next((comment.run_id for comment in comments if comment.token in tokens), None)


def write_submitting(paths: RunPaths, chain: Chain) -> None:
    """Say that sbatch is about to be called."""
    write_state(paths.output, paths.submitting, chain)


def clear_submitting(paths: RunPaths) -> None:
    """Remove the record of the submission in progress: its outcome is known."""
    remove(paths.output, paths.submitting)


def read_submitting(paths: RunPaths) -> Chain | None:
    """Return the unfinished submission, None without one. Raises OpsctlError for a damaged record."""
    return read_whole(paths.output, paths.submitting, Chain, "remove it and try again")


#: The times of a job's end and of its cancel come from the clocks of two hosts.
CLOCKS_DIFFER = timedelta(minutes=1)


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """A cancel of the run's jobs by a user."""

    at: Annotated[Moment, Meta(description="When, by the clock of that host.")]
    by: Annotated[str, Meta(description="User who typed it.")]
    host: Annotated[str, Meta(description="Host on which it was typed.")] = ""
    jobs: Annotated[tuple[str, ...], Meta(description="Cancelled jobs, with the ids that squeue shows.")] = ()
    queued_only: Annotated[bool, Meta(description="True if running jobs continued.")] = False
    chains: Annotated[
        int, Meta(description="Number of recorded chains at that time; later ones were submitted after it.")
    ] = 0

    def describe(self) -> str:
        """Return who cancelled what, and when."""
        what = "its queued tasks" if self.queued_only else "its jobs"
        return f"{self.by} cancelled {what} at {iso(self.at, 'minutes')}"


def record_cancel(paths: RunPaths, jobs: Sequence[str], queued_only: bool, by: str | None = None) -> None:
    """Write it down for `by` (default: this account). The caller holds the run's lock."""
    cancel = Cancel(
        at=now().replace(microsecond=0),
        by=by or account_name(),
        host=socket.gethostname(),
        jobs=tuple(jobs),
        queued_only=queued_only,
        chains=len(read_chains(paths)),
    )
    append_state(paths.output, paths.cancels, cancel)


def read_cancels(paths: RunPaths) -> list[Cancel]:
    """All of them, oldest first. Raises OSError where they cannot be read."""
    return read_lines(paths.output, paths.cancels, Cancel)


def cancelling(cancels: Sequence[Cancel], job: str, began: datetime, ended: datetime) -> Cancel | None:
    """Return the last cancellation of the job with that id that ran from `began` to `ended`. Pure."""
    first, last = began.replace(microsecond=0), ended + CLOCKS_DIFFER
    return next((one for one in reversed(cancels) if job in one.jobs and first <= one.at <= last), None)


def resting(chains: Sequence[Chain], cancels: Sequence[Cancel]) -> Cancel | None:
    """Return the last cancellation if no person has submitted since; a refill does not count. Pure."""
    last = cancels[-1] if cancels else None
    return None if last is None or any(one.is_somebodys_word for one in chains[last.chains :]) else last


@dataclass(frozen=True)
class Recorded:
    """A run's submissions so far."""

    run_id: str | None = None
    chains: tuple[Chain, ...] = ()

    def own(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the run's jobs among `jobs`, whatever their names and owners.

        A job belongs to the run if its comment has the run's id. Without a comment of ours it belongs to a recorded
        chain if id, owner, name, work folder and time of submission all agree. `jobs` are those of all users: a
        colleague may have submitted one by hand.
        """
        jobs = list(jobs)
        run_id = self.run_id or run_id_among(self.chains, jobs)
        of_run = Sent(comment=JobComment.of_run(run_id))
        by_id = {chain.chain: _sent(chain, run_id) for chain in self.chains}
        return [job for job in jobs if match(job, by_id.get(job.array_job_id, of_run)) is Match.OURS]

    def sent(self, array_job_id: int, user: str) -> Sent:
        """Return what is recorded of the newest chain with that id; of a job without one, the run and its owner."""
        chain = next((one for one in reversed(self.chains) if one.chain == array_job_id), None)
        return _sent(chain, self.run_id) if chain is not None else Sent(JobComment.of_run(self.run_id), user)


def recorded(paths: RunPaths) -> Recorded:
    """Return what is recorded; empty before the first submit, and in a copy, whose records are another run's."""
    if place_of(paths).is_another_runs:
        return Recorded()
    return Recorded(read_run_id(paths), tuple(read_chains(paths)))


def _sent(chain: Chain, run_id: str | None) -> Sent:
    return Sent(JobComment.of_run(run_id), chain.user, chain.name, chain.work_dir, *sent_about(chain.submitted_at))
