"""Due times: whole multiples of the period since the epoch, so that no late tick shifts the ones after it. Pure.

All times are seconds since the epoch. A day begins at every TICKS_A_DAY-th due time: with an hour's period at midnight
UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.run.state.scheduler import TICKS_A_DAY, TickEvent

#: Due times further ahead than this were claimed by a wrong clock, and are ignored.
MOST_AHEAD_S = 25 * 3600
#: Events after which a due time is not to be made up for.
COVERING = ("started", "claimed")


@dataclass(frozen=True)
class Claim:
    """The due times that one tick does the work of."""

    first: int
    due: int  # the last of them: the tick's own name
    is_daily: bool  # whether a day begins among them
    late_s: float  # the tick, after `due`


def last_due(now_s: float, period_s: int) -> int:
    """Return the last due time at or before `now_s`."""
    return int(now_s // period_s) * period_s


def next_dues(now_s: float, period_s: int, count: int) -> list[int]:
    """Return the next `count` due times after `now_s`."""
    return [last_due(now_s, period_s) + period_s * number for number in range(1, count + 1)]


def begins_day(due: int, period_s: int) -> bool:
    """Return whether a day begins at this due time."""
    return due % (TICKS_A_DAY * period_s) == 0


def dues_between(first: int, due: int, period_s: int) -> range:
    """Return the due times from `first` to `due`, both included."""
    return range(-(-first // period_s) * period_s, due + 1, period_s)


def moment_of(now_s: float, own_due: int | None) -> float:
    """Return the time for a tick: at least its due time, because Slurm started it then, whatever this node's clock."""
    return now_s if own_due is None else max(now_s, float(own_due))


def latest_claim(now_s: float, period_s: int) -> float:
    """Return the latest due time that a host with a right clock can have claimed by `now_s`."""
    return now_s + max(MOST_AHEAD_S, 2 * period_s)


def covered_until(events: Sequence[TickEvent], now_s: float, period_s: int) -> int | None:
    """Return the last due time that a tick has claimed, or that needs no catch-up; None before the first start.

    A claim far ahead comes from a wrong clock and does not count. A clock set back by an hour is not far.
    """
    latest = latest_claim(now_s, period_s)
    return max((event.due for event in events if event.event in COVERING and event.due <= latest), default=None)


def claim_now(events: Sequence[TickEvent], now_s: float, period_s: int) -> Claim | None:
    """Claim all due times that have come and that no tick has covered; None if there is none.

    Before the first start only the last due time counts. After a clock was set back, nothing is due until it has caught
    up: nothing runs twice, and nothing is left out.
    """
    due, covered = last_due(now_s, period_s), covered_until(events, now_s, period_s)
    if covered is None:
        covered = due - period_s
    if due <= covered:
        return None
    dues = dues_between(covered + 1, due, period_s)
    # A day begins among any TICKS_A_DAY of them.
    is_daily = any(begins_day(one, period_s) for one in dues[:TICKS_A_DAY])
    return Claim(dues[0], due, is_daily, round(now_s - due, 3))


def left_over(events: Sequence[TickEvent], own: Claim) -> list[TickEvent]:
    """Earlier claims whose tick has not said that it was done, newest first: it was killed, or is still at it.

    Only those since the last one that was done: what is older has been made up for.
    """
    done = {event.due for event in events if event.event == "done"}
    found = []
    for event in reversed([one for one in events if one.event == "claimed" and one.due < own.first]):
        if event.due in done:
            break
        found.append(event)
    return found
