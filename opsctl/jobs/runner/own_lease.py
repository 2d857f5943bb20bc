"""The lease of a task: waited for, taken, and renewed by a heartbeat while the step runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opsctl.jobs.runner.main_log import MainLog
from opsctl.jobs.runner.watch_thread import WatchThread
from opsctl.run.attempts.close_lost import over_on_record
from opsctl.run.attempts.events import Attempt
from opsctl.run.state.lease import Held, OwnLease
from opsctl.slurm.durations import format_duration
from trainer.formats.attempt.lease import HEARTBEAT_S, SILENT_S, Holder

#: How long the end of the thread, and giving the lease back, may take when the file system does not answer, seconds.
END_WAIT_S = 10.0


@dataclass(frozen=True)
class WaitPolicy:
    """The limits of waiting for a lease that another job has, in seconds."""

    silent_s: float = SILENT_S  # a heartbeat that has not moved for so long has no owner any more
    alive_s: float = 300.0  # one that has moved all the time is a training that goes on
    poll_s: float = 5.0
    ask_s: float = 30.0  # how often Slurm is asked about the holder's job


class Watched:
    """For how long a heartbeat has not moved, by the watcher's own clock."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._since_s = 0.0

    def still_s(self, held: Held, now_s: float) -> float:
        """Seconds at `now_s` since this heartbeat was first seen as it is."""
        seen = (held.holder.number, held.beat_ns)
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        return now_s - self._since_s


def goes_on(waited_s: float, still_s: float, patience: WaitPolicy) -> bool:
    """Return whether the holder is at work, so that waiting for it is no use. Pure.

    A heartbeat that has begun to stand still is watched to its end, however late that comes.
    """
    return waited_s >= patience.alive_s and still_s < min(3 * HEARTBEAT_S, patience.silent_s)


def wait_for_turn(
    take: Callable[[Callable[[Held], str | None]], OwnLease | Held],
    attempts: Callable[[bool], Sequence[Attempt]],
    requeued_id: int | None,
    log: MainLog,
    leaves: Callable[[], bool],
    patience: WaitPolicy | None = None,
) -> OwnLease | Held | None:
    """Return the lease; its holder, if that one continues; None when `leaves` says that there is nothing to wait for.

    take: `records.lease.take` with all but its last argument. attempts: the recorded ones; with True after asking Slurm
    about open ones. `requeued_id`: see `over_on_record`. Raises OSError if the lease cannot be read or written.
    """
    patience = patience or WaitPolicy()
    watched, began_s = Watched(), time.monotonic()
    known, asked_s, told = attempts(False), began_s, False

    def why_over(held: Held) -> str | None:
        still_s = watched.still_s(held, time.monotonic())
        if still_s >= patience.silent_s:
            return f"no heartbeat for {still_s:.0f} s"
        return over_on_record(held.holder, known, requeued_id)

    while True:
        found = take(why_over)
        if isinstance(found, OwnLease):
            if told:
                log.add_line(f"opsctl: the lease is free, this job has it with number {found.holder.number}")
            return found
        now_s = time.monotonic()
        if not told:
            told = True
            log.add_line(_waiting(found.holder, patience))
        if goes_on(now_s - began_s, watched.still_s(found, now_s), patience):
            return found
        if leaves():
            return None
        time.sleep(patience.poll_s)
        is_time = time.monotonic() - asked_s >= patience.ask_s
        known = attempts(is_time)
        if is_time:
            asked_s = time.monotonic()


def _waiting(holder: Holder, patience: WaitPolicy) -> str:
    return (
        f"opsctl: {holder.named()} has the lease on this run (number {holder.number}): waiting until it has ended, "
        f"or its heartbeat has stopped for {format_duration(patience.silent_s)}, "
        f"at most {format_duration(patience.alive_s)} while the heartbeat continues"
    )


class LeaseHeartbeat(WatchThread):
    """The heartbeat of one lease while its step runs. One that fails is no reason to end a training."""

    end_wait_s = END_WAIT_S

    def __init__(self, lease: OwnLease, every_s: float = HEARTBEAT_S) -> None:
        super().__init__("lease", every_s)  # taking the lease was the first heartbeat
        self.lease, self.every_s = lease, every_s
        self.lost = ""  # why the lease is not ours any more

    def check(self) -> float | None:
        """Renew the lease; no more once another job has taken it."""
        trouble = ""
        try:
            self.lost = self.lease.beat() or ""
        except OSError as error:
            trouble = f"{error.filename or self.lease.paths.lease}: {error.strerror or error}"
        except ValueError as error:  # the folder was moved this very moment
            trouble = str(error)
        failing = f"opsctl: the lease's heartbeat fails, the training continues: {trouble}" if trouble else ""
        self.report_trouble(failing, "opsctl: the lease's heartbeat is back")
        return None if self.lost else self.every_s
