"""The chain of ticks: started, carried by Slurm itself, handed over, stopped."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmError, UsageError
from opsctl.core.files.state_files import locked
from opsctl.core.timestamps import now
from opsctl.jobs.scheduler import crontabs
from opsctl.jobs.scheduler.context import Cron
from opsctl.jobs.scheduler.grid import covered_until, last_due, next_dues
from opsctl.jobs.tracked_job import TrackedJob, send
from opsctl.run.render.scheduler import tick_script
from opsctl.run.state.scheduler import (
    HOUR_S,
    CronChain,
    CronComment,
    Heartbeat,
    Via,
    append_tick,
    beat_heart,
    heartbeat,
    parse_cron_comment,
    read_chain,
    read_ticks,
    stopped,
    this_tick,
    write_chain,
)
from opsctl.slurm.job_match import Sent
from opsctl.slurm.types import Job

#: How long a start or a stop waits for another one, seconds.
LOCK_WAIT_S = 60.0
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
        """Return whether it comes by itself."""
        return not (self.job.is_held or self.job.cannot_start)


@dataclass(frozen=True)
class Needed:
    """The changes that the queue needs."""

    submit: tuple[int, ...]  # due times
    cancel: tuple[int, ...]  # job ids


def ticks_of(jobs: Iterable[Job], token: str, user: str) -> list[QueuedTick]:
    """Return the ticks of the chain `token` that belong to `user`, by due time. Any user can write such a comment."""
    found = []
    for job in jobs:
        comment = parse_cron_comment(job.comment)
        if comment and comment.token == token and comment.due is not None and job.user == user:
            found.append(QueuedTick(comment.due, job))
    return sorted(found, key=lambda tick: (tick.due, tick.job.job_id))


def needed(ticks: Iterable[QueuedTick], now_s: float, covered: int | None, period_s: int, own_job: int = 0) -> Needed:
    """Return which ticks to submit so that the next AHEAD due times are queued, and which pending ones are over.

    now_s: the current time, see `grid.moment_of`. covered: the last due time that a tick has claimed.
    """
    ticks = [tick for tick in ticks if tick.job.job_id != own_job]
    coming = {tick.due for tick in ticks if tick.may_start}
    missing = [due for due in next_dues(now_s, period_s, AHEAD) if due not in coming]
    over = [tick.job.job_id for tick in ticks if tick.job.is_pending and covered is not None and tick.due <= covered]
    room = max(0, MOST_QUEUED - (len(ticks) - len(over)))
    return Needed(tuple(missing[:room]), tuple(over))


@dataclass(frozen=True)
class Begun:
    """The result of `start`."""

    chain: CronChain
    is_new: bool
    queued: tuple[int, ...] = ()  # job ids of ticks that were submitted now
    notes: tuple[str, ...] = ()


def queue_ahead(
    cron: Cron, token: str, period_s: int, now_s: float, covered: int | None, own_job: int = 0
) -> list[int]:
    """See that the next due times are in Slurm's queue, and take out what is over; the new jobs' ids.

    Raises SlurmError: some may have been submitted then.
    """
    user = account_name()
    ticks = ticks_of(cron.client.jobs(users=[user]), token, user)
    need = needed(ticks, now_s, covered, period_s, own_job)
    try:  # what is over first: an account may have just so many jobs in the queue
        if need.cancel:
            cron.client.cancel(need.cancel, pending_only=True)
    finally:
        new = [_submit_tick(cron, token, period_s, due) for due in need.submit]
    return new


def queued_ticks(cron: Cron, chain: CronChain) -> list[QueuedTick]:
    """Return the chain's queued ticks, by due time. Raises SlurmError."""
    return ticks_of(cron.client.jobs(users=[chain.carried_by]), chain.token, chain.carried_by)


def cancel_ticks(cron: Cron, token: str) -> None:
    """Cancel this account's own pending ticks of a chain. Raises SlurmError."""
    user = account_name()
    ticks = ticks_of(cron.client.jobs(users=[user]), token, user)
    cron.client.cancel([tick.job.job_id for tick in ticks if tick.job.is_pending], pending_only=True)


def start(cron: Cron, via: Via | None, period_s: int | None, take_over: bool, clock: Callable[[], float]) -> Begun:
    """Start the chain unless it lives; then see that its ticks are queued, where they are the caller's.

    A dead one moves to the caller, and so does a living one with `take_over`. Raises OpsctlError, SlurmError.
    """
    paths = cron.paths
    with locked(paths.folder, paths.chain_lock, LOCK_WAIT_S, "start the cron"):
        old = _chain_or_none(cron, take_over)
        is_alive = old is not None and not old.is_stopped and not is_dead(old, heartbeat(paths))
        if old is not None and is_alive and not take_over:
            return _kept(cron, old, via, period_s, clock)
        return _new(cron, old, via, period_s, clock)


def stop(cron: Cron) -> tuple[CronChain | None, tuple[str, ...]]:
    """Stop the chain; None where none was started. Whose ticks are not the caller's leave by themselves.

    Raises OpsctlError; a Slurm that does not answer is only noted, for ticks leave when they find the chain stopped.
    """
    paths = cron.paths
    with locked(paths.folder, paths.chain_lock, LOCK_WAIT_S, "stop the cron"):
        chain = read_chain(paths)
        if chain is None or chain.is_stopped:
            return chain, ()
        chain = stopped(chain)
        write_chain(paths, chain)
        return chain, _clear_away(cron, chain)


def is_dead(chain: CronChain | None, beat: Heartbeat | None) -> bool:
    """Return whether no tick of a chain that should be alive has shown itself for too long."""
    return chain is not None and not chain.is_stopped and (beat is None or beat.is_dead(chain.period_s))


def _chain_or_none(cron: Cron, take_over: bool) -> CronChain | None:
    try:
        return read_chain(cron.paths)
    except OpsctlError:
        if take_over:
            return None
        raise


def _kept(cron: Cron, chain: CronChain, via: Via | None, period_s: int | None, clock: Callable[[], float]) -> Begun:
    if (via not in (None, chain.via)) or (period_s not in (None, chain.period_s)):
        raise OpsctlError(
            f"the cron is carried by {chain.carrier()}, a tick every {chain.period_s} s: "
            "opsctl cron start --take-over with what you want replaces it"
        )
    if chain.carried_by != account_name() or chain.via != "slurm":
        return Begun(chain, False)
    covered = covered_until(read_ticks(cron.paths), clock(), chain.period_s)
    return Begun(chain, False, tuple(queue_ahead(cron, chain.token, chain.period_s, clock(), covered)))


def _new(cron: Cron, old: CronChain | None, via: Via | None, period_s: int | None, clock: Callable[[], float]) -> Begun:
    """Start a new chain: submit its ticks, record it, then clear away the old one."""
    paths = cron.paths
    notes: tuple[str, ...] = ()
    period_s = period_s or (old.period_s if old else HOUR_S)
    chain = CronChain(
        token=secrets.token_hex(6),
        via=via or crontabs.best_via(cron, period_s),
        period_s=period_s,
        carried_by=account_name(),
        host=socket.gethostname(),
        started_at=now().replace(microsecond=0),
    )
    ticks = read_ticks(paths)
    covered, due = covered_until(ticks, clock(), period_s), last_due(clock(), period_s)
    goes_on = old is not None and not old.is_stopped and covered is not None
    new: list[int] = []
    if chain.via == "slurm":
        if goes_on and covered is not None and covered < due:
            new.append(_submit_tick(cron, chain.token, period_s, due))  # what was missed is made up for at once
        new += queue_ahead(cron, chain.token, period_s, clock(), None)
    else:
        crontabs.install(cron, chain)
    if not goes_on:
        append_tick(paths, this_tick("started", due, chain, 0))
    write_chain(paths, chain)
    beat_heart(paths)
    if old is not None:
        notes = _clear_away(cron, old, chain.via)
    return Begun(chain, True, tuple(new), notes)


def _clear_away(cron: Cron, chain: CronChain, instead: str = "") -> tuple[str, ...]:
    """Cancel the waiting ticks of a chain that is over, as far as they are the caller's."""
    if chain.carried_by != account_name():
        return (f"{chain.carried_by}'s ticks leave by themselves when they find that out",)
    try:
        if chain.via == "slurm":
            cancel_ticks(cron, chain.token)
        elif chain.via != instead:
            crontabs.uninstall(cron, chain.via, chain.token)
    except (SlurmError, UsageError) as error:
        return (f"ticks that are left leave by themselves ({error})",)
    return ()


def _submit_tick(cron: Cron, token: str, period_s: int, due: int) -> int:
    comment = str(CronComment(token, "tick", str(due)))
    script = tick_script(cron.setting(token, period_s), due, comment)
    return send(cron.client, script, TrackedJob(Sent(comment, account_name()), now()))
