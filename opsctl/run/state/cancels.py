"""What people have cancelled of a run: a line for each time, in `.opsctl/cancels.jsonl`, only added to.

Whoever keeps a chain going by itself reads here that somebody wants it to rest, until somebody submits again.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.account import account_name
from opsctl.core.files.state_files import append_state, read_lines
from opsctl.core.timestamps import iso, now
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import Chain, read_chains
from trainer.formats.json_text import Moment

#: A job's end and the word that ended it are told by the clocks of two hosts.
CLOCKS_DIFFER = timedelta(minutes=1)


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's word that jobs of the run are not wanted."""

    at: Annotated[Moment, Meta(description="When, by the clock of that host.")]
    by: Annotated[str, Meta(description="The account.")]
    host: Annotated[str, Meta(description="Where it was typed.")] = ""
    jobs: Annotated[tuple[str, ...], Meta(description="What was cancelled, as squeue shows the ids.")] = ()
    queued_only: Annotated[bool, Meta(description="Whether what ran went on.")] = False
    chains: Annotated[int, Meta(description="How many chains were on record: later ones came after it.")] = 0

    def describe(self) -> str:
        """Return who cancelled what, and when."""
        return (
            f"{self.by} cancelled {'what was queued' if self.queued_only else 'its jobs'} at {iso(self.at, 'minutes')}"
        )


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
    """The last cancelling of a job, by the id that squeue showed, that ran from `began` to `ended`; None without one.

    The same id may have been another job's before or since, where a cluster's ids start over. Pure.
    """
    first, last = began.replace(microsecond=0), ended + CLOCKS_DIFFER
    return next((one for one in reversed(cancels) if job in one.jobs and first <= one.at <= last), None)


def resting(chains: Sequence[Chain], cancels: Sequence[Cancel]) -> Cancel | None:
    """The last cancelling, when nobody has submitted since; None where the run is to go on. Pure.

    A chain that was submitted without anybody's word, by a refill, is no submission.
    """
    last = cancels[-1] if cancels else None
    if last is None or any(chain.is_somebodys_word for chain in chains[last.chains :]):
        return None
    return last
