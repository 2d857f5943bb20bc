"""Due times: whole multiples of the period since the epoch, so that no late tick shifts the ones after it. Pure.

All times are seconds since the epoch. A day begins at every TICKS_A_DAY-th due time: with an hour's period at midnight
UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.run.state.scheduler import TICKS_A_DAY, TickEvent

#: Due times that lie further ahead than this were claimed by a clock that was wrong: nobody waits for them.
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
    """The due time at `now_s` or the last one before it."""
    return int(now_s // period_s) * period_s


def next_dues(now_s: float, period_s: int, count: int) -> list[int]:
    """The next `count` due times after `now_s`."""
    return [last_due(now_s, period_s) + period_s * number for number in range(1, count + 1)]


def begins_day(due: int, period_s: int) -> bool:
    """Return whether a day begins at this due time."""
    return due % (TICKS_A_DAY * period_s) == 0


def dues_between(first: int, due: int, period_s: int) -> range:
    """The due times from `first` to `due`, both of them."""
    return range(-(-first // period_s) * period_s, due + 1, period_s)


def moment_of(now_s: float, own_due: int | None) -> float:
    """What time it is for a tick: Slurm started it for `own_due`, so that has come, whatever this node's clock says."""
    return now_s if own_due is None else max(now_s, float(own_due))


def latest_claim(now_s: float, period_s: int) -> float:
    """Return the latest due time that a host with a right clock can have claimed by `now_s`."""
    return now_s + max(MOST_AHEAD_S, 2 * period_s)


def covered_until(events: Sequence[TickEvent], now_s: float, period_s: int) -> int | None:
    """The last due time that a tick has claimed, or that is nobody's to make up for; None before the first start.

    One that lies far ahead was claimed by a clock that was wrong, and does not count; an hour stepped back is not far.
    """
    latest = latest_claim(now_s, period_s)
    return max((event.due for event in events if event.event in COVERING and event.due <= latest), default=None)


def claim_now(events: Sequence[TickEvent], now_s: float, period_s: int) -> Claim | None:
    """All due times that have come and that nobody has covered; None where there is none.

    Before the first start nothing has come but the last due time. With a clock that was stepped back nothing is due
    until it is where it was: nothing is done twice, and nothing left out.
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
