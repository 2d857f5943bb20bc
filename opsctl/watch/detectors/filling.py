"""When will a file system be full, at the pace at which it fills?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from opsctl.watch.detector import Detector, Settings
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.robust import middle, slope
from opsctl.watch.seen import Space
from opsctl.watch.snapshot import Part, Snapshot
from opsctl.watch.wording import bytes_words, count_words, length_words, percent_words, seconds_of

CHECK = "filling"
HELP = """When will a file system or quota be full, of bytes or of inodes, at the pace at which it fills?

1: within `[watch] full_within`, by what a day was fuller than the day before it; or within 12 hours, by the last six.
2: within a day. What a rotation of checkpoints removes each day does not count as growth.
"""
DAY_S = 86400.0
#: Looks that a day's middle takes.
_LOOKS = 4
#: The short view: so long back, and full within so long.
SHORT, SOON_S, SHORT_LOOKS = timedelta(hours=6), 12 * 3600.0, 4
#: Growth of less than this share of the limit a day, or within the short view, is none.
_DAILY_LEAST, _SHORT_LEAST = 0.002, 0.02
#: Of `full_within`: once told it stays so until there is so much more time.
_STEADY = 1.15


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A finding for each that will be full too soon."""
    within_s = seconds_of(settings.watch, "full_within") or 7 * DAY_S
    found = []
    for space in snapshot.spaces:
        history = [one for one in (*snapshot.space_history, space) if one.name == space.name and one.at <= snapshot.now]
        for kind in ("bytes", "inodes"):
            looks = _looks(history, kind)
            finding = _filling(space, kind, looks, within_s) if looks else None
            if finding is not None:
                found.append(finding)
    return found


#: (seconds before now, negative; used; limit)
Look = tuple[float, float, float]


def _looks(history: Sequence[Space], kind: str) -> list[Look]:
    if not history:
        return []
    now = history[-1].at
    found = []
    for one in history:
        used, limit, share = (
            (one.used_bytes, one.limit_bytes, one.share)
            if kind == "bytes"
            else (one.used_inodes, one.limit_inodes, one.inode_share)
        )
        if used is not None and limit:
            found.append(((one.at - now).total_seconds(), float(used), float(limit)))
        elif share is not None:
            found.append(((one.at - now).total_seconds(), share, 1.0))
    # What was looked at before counts only where it goes up to now.
    return found if found and found[-1][0] == 0.0 else []


def _filling(space: Space, kind: str, looks: Sequence[Look], within_s: float) -> Finding | None:
    _, used, limit = looks[-1]
    left = limit - used
    daily, before = _growth_a_day(looks, 0.0), _growth_a_day(looks, -DAY_S / 4)
    least = _DAILY_LEAST * limit
    full_in_s = left / daily * DAY_S if daily is not None and daily > least else None
    was_told = before is not None and before > least and left / before * DAY_S < within_s
    told = full_in_s is not None and full_in_s < within_s * (_STEADY if was_told else 1.0)
    pace, over = daily or 0.0, "the last day against the day before"
    fast = _growth_lately(looks, limit)
    if fast is not None and left / fast * DAY_S < SOON_S:
        told, full_in_s, pace, over = True, left / fast * DAY_S, fast, f"the last {length_words(SHORT)}"
    if not told or full_in_s is None or left <= 0:
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


def _growth_a_day(looks: Sequence[Look], end_s: float) -> float | None:
    """What the day up to `end_s` was fuller than the day before it; whatever goes up and down within days cancels."""
    days: list[list[float]] = [[], []]
    for at, used, _ in looks:
        day = int((end_s - at) // DAY_S)
        if at <= end_s and day < 2:
            days[day].append(used)
    if min(len(days[0]), len(days[1])) < _LOOKS:
        return None
    return middle(days[0]) - middle(days[1])


def _growth_lately(looks: Sequence[Look], limit: float) -> float | None:
    """Growth a day by the last hours alone, where that is much."""
    lately = [(at, used) for at, used, _ in looks if at >= -SHORT.total_seconds()]
    if len(lately) < SHORT_LOOKS or lately[-1][1] - lately[0][1] < _SHORT_LEAST * limit:
        return None
    pace = slope(lately)
    return pace * DAY_S if pace is not None and pace > 0 else None


DETECTOR = Detector(CHECK, find, Part.SPACE, HELP)
