"""One tick: first its successors, then the due times that have come, then the jobs, then its successors again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmError, SlurmUnreachable, file_problem
from opsctl.core.files.reserve import keep_ballast
from opsctl.core.files.state_files import FULL_DISK, locked, remove
from opsctl.core.timestamps import now
from opsctl.jobs.scheduler import crontabs
from opsctl.jobs.scheduler.chain import cancel_ticks, queue_ahead
from opsctl.jobs.scheduler.context import Cron, JobFile, job_files
from opsctl.jobs.scheduler.grid import Claim, begins_day, claim_now, covered_until, dues_between, left_over, moment_of
from opsctl.jobs.scheduler.job_runs import LOCK_WAIT_S, settle, start_job
from opsctl.run.state.scheduler import (
    CronChain,
    TickEvent,
    append_tick,
    beat_heart,
    read_chain,
    read_ticks,
    this_tick,
    write_chain,
)

T = TypeVar("T")

#: How long a tick waits for who queues ticks right now; then it goes on, for one too many does no harm.
_QUEUE_LOCK_WAIT_S = 30.0
#: Disk for the records and outputs of many ticks.
RESERVE_BYTES = 256 << 10
#: How often a tick asks again for its successors where Slurm does not answer; each time it is patient for minutes.
_TRIES = 3


@dataclass(frozen=True)
class Own:
    """The facts that a tick knows of itself, independent of the records."""

    token: str
    period_s: int
    due: int | None  # None: no tick of Slurm's queue, a crontab's
    job_id: int = 0


@dataclass
class Ticked:
    """The result of one tick."""

    left: str = ""  # why it left at once
    claim: Claim | None = None
    started: int = 0
    problems: list[str] = field(default_factory=list)


def tick(cron: Cron, own: Own, clock: Callable[[], float]) -> Ticked:
    """Do what is due. Nothing that goes wrong with one part keeps the others from being done; it is in `problems`."""
    result, began = Ticked(), time.monotonic()
    chain, why = _own_chain(cron, own, result)
    if chain is None:
        result.left = why
        with _noted(result, "the rest of the chain"):
            _leave(cron, own)
        return result
    if chain.via == "slurm":
        with _noted(result, "the next ticks"):
            _queue_successors(cron, own, chain, clock)
    try:
        result.claim, left = _retry_on_full_disk(cron, result, lambda: _claim(cron, own, chain, clock))
    except (OpsctlError, OSError) as error:  # such as a full disk: the due time stays, for a tick that can claim it
        result.problems.append(f"not claimed: {_describe(error)}")
        return result
    with _noted(result, "the heartbeat"):
        beat_heart(cron.paths)
    if result.claim is not None:
        with _noted(result, "runs that have ended"):
            settle(cron)
        _start_jobs(cron, chain, result.claim, left, result)
        with _noted(result, "the record of this tick"):
            _record_done(cron, own, chain, result, time.monotonic() - began)
        if chain.via == "slurm":
            with _noted(result, "the next ticks"):
                _queue_successors(cron, own, chain, clock)
        with _noted(result, "the heartbeat"):
            beat_heart(cron.paths)
        with _noted(result, "the reserve"):
            keep_ballast(cron.paths.folder, cron.paths.reserve, RESERVE_BYTES)
    return result


def _retry_on_full_disk(cron: Cron, result: Ticked, do: Callable[[], T]) -> T:
    """Call `do`; where the disk is full, free the reserve and call it again. Raises as `do`."""
    try:
        return do()
    except OSError as error:
        if error.errno not in FULL_DISK or not remove(cron.paths.folder, cron.paths.reserve):
            raise
        result.problems.append(f"{_describe(error)}: the reserve was given up")
        return do()


def _own_chain(cron: Cron, own: Own, result: Ticked) -> tuple[CronChain | None, str]:
    """Return the chain of this tick; None, and why, where it is over."""
    paths = cron.paths
    try:
        chain = read_chain(paths)
    except OpsctlError as error:
        # An edit or a disk error is no reason to end. Claims are made once, whatever this file contains.
        result.problems.append(str(error))
        chain = CronChain(
            token=own.token,
            via="crontab" if own.due is None else "slurm",
            period_s=own.period_s,
            carried_by=account_name(),
            host="",
            started_at=now().replace(microsecond=0),
        )
        with _noted(result, "the chain's record"):
            write_chain(paths, chain)
        return chain, ""
    if chain is None:
        return None, f"there is no chain in {paths.folder} any more"
    if chain.token != own.token:
        return None, f"the chain is now carried by {chain.carrier()}"
    if chain.is_stopped:
        return None, f"{chain.stopped_by} has stopped it"
    return chain, ""


def _leave(cron: Cron, own: Own) -> None:
    if own.due is not None:
        cancel_ticks(cron, own.token)
    else:
        for via in ("crontab", "scrontab"):
            with contextlib.suppress(OpsctlError):
                crontabs.uninstall(cron, via, own.token)


def _queue_successors(cron: Cron, own: Own, chain: CronChain, clock: Callable[[], float]) -> None:
    """Queue the next ticks. Raises SlurmError if Slurm did not answer for many minutes, or refuses."""
    for left in reversed(range(_TRIES)):
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OpsctlError, OSError):
                held.enter_context(
                    locked(cron.paths.folder, cron.paths.chain_lock, _QUEUE_LOCK_WAIT_S, "queue the next ticks")
                )
            now_s = moment_of(clock(), own.due)
            try:
                covered = covered_until(read_ticks(cron.paths), now_s, chain.period_s)
            except OSError:
                covered = None
            try:
                queue_ahead(cron, chain.token, chain.period_s, now_s, covered, own.job_id)
            except SlurmUnreachable:
                if not left:
                    raise
            else:
                return


def _claim(cron: Cron, own: Own, chain: CronChain, clock: Callable[[], float]) -> tuple[Claim | None, list[TickEvent]]:
    """Claim what is due; return the claim, and earlier claims whose tick did not finish."""
    paths = cron.paths
    with locked(paths.folder, paths.lock, LOCK_WAIT_S, "claim what is due"):
        events = read_ticks(paths)
        claim = claim_now(events, moment_of(clock(), own.due), chain.period_s)
        if claim is None:
            return None, []
        more = {"first": claim.first, "late_s": claim.late_s}
        append_tick(paths, this_tick("claimed", claim.due, chain, own.job_id, **more))
        return claim, left_over(events, claim)


def _start_jobs(cron: Cron, chain: CronChain, claim: Claim, left: list[TickEvent], result: Ticked) -> None:
    begun_days = [claim.first] if claim.is_daily else [event.first for event in left if _is_daily(event)]
    wanted = [(file, claim.first) for file in _files(cron, False, result)]
    wanted += [(file, begun_days[0]) for file in (_files(cron, True, result) if begun_days else [])]
    for file, since in wanted:
        with _noted(result, file.name):
            start = partial(start_job, cron, file, chain.token, chain.period_s, since, claim.due)
            done = _retry_on_full_disk(cron, result, start)
            result.started += bool(done.job_id)
            result.problems += [done.problem] if done.problem else []


def _is_daily(event: TickEvent) -> bool:
    return any(begins_day(due, event.period_s) for due in dues_between(event.first, event.due, event.period_s)[:24])


def _files(cron: Cron, daily: bool, result: Ticked) -> list[JobFile]:
    with _noted(result, "the daily jobs" if daily else "the hourly jobs"):
        return job_files(cron.paths, daily)
    return []


def _record_done(cron: Cron, own: Own, chain: CronChain, result: Ticked, duration_s: float) -> None:
    assert result.claim is not None
    more = {"duration_s": round(duration_s, 3), "started": result.started, "problems": tuple(result.problems)}
    append_tick(cron.paths, this_tick("done", result.claim.due, chain, own.job_id, **more))


@contextlib.contextmanager
def _noted(result: Ticked, what: str) -> Iterator[None]:
    """Record an error as a problem, so that the other parts of the tick still run."""
    try:
        yield
    except (OpsctlError, SlurmError, OSError) as error:
        result.problems.append(f"{what}: {_describe(error)}")


def _describe(error: Exception) -> str:
    return file_problem(error) if isinstance(error, OSError) else str(error)
