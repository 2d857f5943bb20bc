"""What has been submitted for a run: its id, its chains, and a submission that may not have come to its end.

`chains.jsonl` has one line per sbatch. `submitting.json` is written before sbatch and removed once its outcome is on
record: if it is there when a command looks, somebody was cut off, and Slurm is asked for its token.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.files.state_files import append_state, read_lines, read_whole, remove, write_state
from opsctl.run.config.job_comment import parse_comment
from opsctl.run.config.paths import RunPaths
from opsctl.slurm.types import Job
from trainer.formats.json_text import Moment

#: What submits a chain, as its record says.
SUBMIT, REVISE, REQUEST, REFILL = "submit", "revise", "request", "refill"


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """One sbatch of a job array."""

    chain: Annotated[int, Meta(description="The array's job id; 0 while it is not known.")]
    token: Annotated[str, Meta(description="Finds the submission again among all jobs.")] = ""
    submitted_at: Annotated[Moment, Meta(description="Just before sbatch was called.")]
    user: Annotated[str, Meta(description="Who submitted it.")]
    host: Annotated[str, Meta(description="Where it was submitted.")] = ""
    name: Annotated[str, Meta(description="The job's name; empty if unknown.")] = ""
    work_dir: Annotated[str, Meta(description="The folder that its tasks start in; empty if unknown.")] = ""
    output: Annotated[str, Meta(description="The run's output folder then; empty if unknown.")] = ""
    revision: Annotated[str, Meta(description="Name of the newest revision then.")] = ""
    array: Annotated[str, Meta(description="The tasks, as sbatch takes them.")]
    asked: Annotated[
        str, Meta(description="The tasks that were asked for, where this is one of several arrays that have them.")
    ] = ""
    after: Annotated[tuple[str, ...], Meta(description="What it waits for, as job ids.")] = ()
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
        str, Meta(description="What submitted it: `submit`, `revise`, `request` or `refill`; empty if unknown.")
    ] = ""

    @property
    def is_somebodys_word(self) -> bool:
        """Whether a person wanted this very chain; a refill only keeps up what somebody wanted before."""
        return self.how != REFILL

    @property
    def is_typed(self) -> bool:
        """Whether `opsctl submit` made it, so that its array is as long as somebody wants one to be."""
        return self.how in ("", SUBMIT)


def read_chains(paths: RunPaths) -> list[Chain]:
    """The run's chains, oldest first. Lines that are no chain are passed over."""
    return read_lines(paths.output, paths.chains, Chain)


def last_word(chains: Sequence[Chain]) -> Chain | None:
    """The newest chain that somebody wanted; where none is, the first. None without any.

    From its submission on attempts count against a brake: what only kept the run going releases none.
    """
    return next((chain for chain in reversed(chains) if chain.is_somebodys_word), chains[0] if chains else None)


def counted_since(chains: Sequence[Chain], submitted_at: datetime) -> datetime:
    """Since when attempts count against the brake of the chain that was submitted at `submitted_at`.

    Its own submission, or, for one that only kept the run going, that of the last that somebody wanted before it.
    """
    places = [place for place, chain in enumerate(chains) if chain.submitted_at == submitted_at]
    word = last_word(chains[: places[-1] + 1]) if places else None
    return min(word.submitted_at, submitted_at) if word is not None else submitted_at


def append_chain(paths: RunPaths, chain: Chain) -> None:
    """Record a chain that Slurm has taken."""
    append_state(paths.output, paths.chains, chain)


def new_token() -> str:
    """Finds one submission again among all jobs."""
    return secrets.token_hex(6)


def token_of(job: Job) -> str | None:
    """The submission a job came from, as its comment says."""
    comment = parse_comment(job.comment)
    return comment.token if comment else None


def run_id_among(chains: Iterable[Chain], jobs: Iterable[Job]) -> str | None:
    """The id of the run that submitted `chains`, found again by their tokens in the jobs' comments."""
    tokens = {chain.token for chain in chains if chain.token}
    comments = filter(None, (parse_comment(job.comment) for job in jobs))
    return next((comment.run_id for comment in comments if comment.token in tokens), None)


def write_submitting(paths: RunPaths, chain: Chain) -> None:
    """Say that sbatch is about to be called."""
    write_state(paths.output, _submitting(paths), chain)


def clear_submitting(paths: RunPaths) -> None:
    """The outcome is known."""
    remove(paths.output, _submitting(paths))


def read_submitting(paths: RunPaths) -> Chain | None:
    """The submission that somebody could not finish, None without one. Raises OpsctlError for a damaged record."""
    return read_whole(paths.output, _submitting(paths), Chain, "remove it and try again")


def settle_submitting(paths: RunPaths, jobs: Iterable[Job]) -> Chain | None:
    """Record the submission that somebody could not finish, if Slurm has it after all; returns it then.

    `jobs` is the queue as it is now. The caller holds the run's lock, so nobody is submitting meanwhile.
    """
    chain = read_submitting(paths)
    if chain is None:
        return None
    found = None
    job_id = next((job.array_job_id for job in jobs if token_of(job) == chain.token), None)
    if job_id is not None:
        found = msgspec.structs.replace(chain, chain=job_id)
        if all(known.token != chain.token for known in read_chains(paths)):
            append_chain(paths, found)
    clear_submitting(paths)
    return found


def _submitting(paths: RunPaths) -> Path:
    return paths.state / "submitting.json"
