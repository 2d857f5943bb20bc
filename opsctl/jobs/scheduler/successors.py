"""Which ticks have to be in Slurm's queue, and which have become useless. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opsctl.jobs.scheduler.grid import next_dues
from opsctl.run.state.scheduler import parse_cron_comment
from opsctl.slurm.types import Job

#: Due times that are queued ahead: of two, one may be cancelled, held or lost, and the other goes on.
AHEAD = 2
#: Ticks of one chain in the queue beyond which none is added, however many of them are held or cannot start.
MOST_QUEUED = 8


@dataclass(frozen=True)
class QueuedTick:
    """A tick in Slurm's queue."""

    due: int
    job: Job

    @property
    def may_start(self) -> bool:
        """Whether it comes by itself."""
        return not (self.job.is_held or self.job.cannot_start)


@dataclass(frozen=True)
class Needed:
    """What has to be done about the queue."""

    submit: tuple[int, ...]  # due times
    cancel: tuple[int, ...]  # job ids


def ticks_of(jobs: Iterable[Job], token: str, user: str) -> list[QueuedTick]:
    """The ticks of the chain `token` that are `user`'s, by due time: a comment is anybody's to write."""
    found = []
    for job in jobs:
        comment = parse_cron_comment(job.comment)
        if comment and comment.token == token and comment.due is not None and job.user == user:
            found.append(QueuedTick(comment.due, job))
    return sorted(found, key=lambda tick: (tick.due, tick.job.job_id))


def needed(ticks: Iterable[QueuedTick], now_s: float, covered: int | None, period_s: int, own_job: int = 0) -> Needed:
    """What has to be submitted so that the next AHEAD due times are queued, and which pending ones are over.

    now_s: the moment for who asks, see `grid.moment_of`. covered: the last due time that a tick has claimed.
    """
    ticks = [tick for tick in ticks if tick.job.job_id != own_job]
    coming = {tick.due for tick in ticks if tick.may_start}
    missing = [due for due in next_dues(now_s, period_s, AHEAD) if due not in coming]
    over = [tick.job.job_id for tick in ticks if tick.job.is_pending and covered is not None and tick.due <= covered]
    room = max(0, MOST_QUEUED - (len(ticks) - len(over)))
    return Needed(tuple(missing[:room]), tuple(over))
