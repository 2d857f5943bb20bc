"""When will a file system be full, at the pace at which it fills?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from opsctl.core.units import bytes_words, count_words
from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.observed import Space
from opsctl.monitoring.quantities import length_words, percent_words, seconds_of
from opsctl.monitoring.robust import middle, slope
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "filling"
HELP = """When will a file system or quota be full, of bytes or of inodes, at the pace at which it fills?

1: within `[watch] full_within`, by what it has grown since a day ago; or within 12 hours, by the last six.
2: within a day. What a rotation of checkpoints removes each day does not count as growth, nor does one jump.
"""
DAY_S = 86400.0
#: Newest looks that are held against those a day before: so far back, so many at least, and so near to that.
NEWEST_S, LOOKS, NEAR_S = 6 * 3600.0, 3, 2700.0
#: From so many looks a day on, the largest step among them is left out: somebody unpacked something, which is no pace.
STEPS = 12
#: The short view: so long back, and full within so long.
SHORT, SOON_S, SHORT_LOOKS = timedelta(hours=6), 12 * 3600.0, 4
#: Growth of less than this share of the limit a day, or within the short view, is none.
_DAILY_LEAST, _SHORT_LEAST = 0.002, 0.02
#: Of `full_within`: once told it stays so until there is so much more time.
_STEADY = 1.25
#: Looks that a day before counts for: those of the newest hours, less a day, and once more for what was told before.
_BACK_S = 4 * DAY_S


@dataclass(frozen=True)
class Look:
    """What one look said."""

    at_s: float  # before now, negative
    used: float
    limit: float


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A finding for each that will be full too soon."""
    within_s = seconds_of(settings.watch, "full_within") or 7 * DAY_S
    found = []
    for space in snapshot.spaces:
        history = _of(space, snapshot.space_history)
        for kind in ("bytes", "inodes"):
            finding = _filling(space, kind, _looks(history, kind), within_s)
            if finding is not None:
                found.append(finding)
    return found


def _of(space: Space, history: Sequence[Space]) -> list[Space]:
    """The looks at this one up to now, oldest first; no longer ago than anybody needs."""
    found = [space]
    for one in reversed(history):
        if (space.at - one.at).total_seconds() > _BACK_S:
            break
        if one.name == space.name and one.at < found[-1].at:
            found.append(one)
    return found[::-1]


def _looks(history: Sequence[Space], kind: str) -> list[Look]:
    now = history[-1].at
    found = []
    for one in history:
        used, limit, share = (
            (one.used_bytes, one.limit_bytes, one.share)
            if kind == "bytes"
            else (one.used_inodes, one.limit_inodes, one.inode_share)
        )
        at_s = (one.at - now).total_seconds()
        if used is not None and limit:
            found.append(Look(at_s, float(used), float(limit)))
        elif share is not None:
            found.append(Look(at_s, share, 1.0))
    # What was looked at before counts only where it goes up to now.
    return found if found and found[-1].at_s == 0.0 else []


def _filling(space: Space, kind: str, looks: Sequence[Look], within_s: float) -> Finding | None:
    if not looks:
        return None
    used, limit = looks[-1].used, looks[-1].limit
    left = limit - used
    full_in_s, pace, over = None, _growth_a_day(looks), "the last day"
    if pace is not None and pace > _DAILY_LEAST * limit:
        full_in_s = left / pace * DAY_S
        earlier = [one for one in looks if one.at_s <= -NEWEST_S / 2]
        before = _growth_a_day(earlier)
        was_told = before is not None and before > _DAILY_LEAST * limit and left / before * DAY_S < within_s
        if full_in_s >= within_s * (_STEADY if was_told else 1.0):
            full_in_s = None
    fast = _growth_lately(looks, limit)
    if fast is not None and left / fast * DAY_S < SOON_S:
        full_in_s, pace, over = left / fast * DAY_S, fast, f"the last {length_words(SHORT)}"
    if full_in_s is None or pace is None or left <= 0:
        return None
    words = percent_words if limit == 1.0 else bytes_words if kind == "bytes" else count_words
    return Finding(
        CHECK,
        Severity.CRITICAL if full_in_s < DAY_S else Severity.WARNING,
        f"{space.name} will be full of {kind} in {length_words(full_in_s)}: "
        f"{words(left)} left, {words(pace)} more a day",
        subject=f"{space.name} {kind}",
        evidence=(f"{words(used)} of {words(limit)} is used; it grows by {words(pace)} a day, by {over}",),
        todo="opsctl checkpoints list: which can go? Is the rotation running: opsctl cron status",
    )


def _growth_a_day(looks: Sequence[Look]) -> float | None:
    """How much more there is than a day ago, the middle of the newest looks: what goes up and down daily cancels.

    None where nobody looked a day ago.
    """
    if not looks:
        return None
    end_s = looks[-1].at_s
    newest = [place for place, one in enumerate(looks) if one.at_s >= end_s - NEWEST_S]
    newest = newest if len(newest) >= LOOKS else list(range(max(0, len(looks) - LOOKS), len(looks)))
    growths = []
    for place in newest:
        start = min(range(place + 1), key=lambda one: abs(looks[place].at_s - DAY_S - looks[one].at_s))
        if abs(looks[place].at_s - DAY_S - looks[start].at_s) > NEAR_S:
            continue
        steps = [later.used - earlier.used for earlier, later in pairwise(looks[start : place + 1])]
        growths.append(sum(steps) - (max(0.0, *steps) if len(steps) >= STEPS else 0.0))
    return middle(growths) if len(growths) >= LOOKS else None


def _growth_lately(looks: Sequence[Look], limit: float) -> float | None:
    """Growth a day by the last hours alone, where that is much."""
    lately = [(one.at_s, one.used) for one in looks if one.at_s >= -SHORT.total_seconds()]
    if len(lately) < SHORT_LOOKS or lately[-1][1] - lately[0][1] < _SHORT_LEAST * limit:
        return None
    pace = slope(lately)
    return pace * DAY_S if pace is not None and pace > 0 else None


DETECTOR = Detector(CHECK, find, Part.SPACE, HELP)
