"""Checks of file systems and quotas: free space, the time until they are full, and files that will be purged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise, takewhile

from opsctl.core.units import bytes_words, count_words
from opsctl.monitoring.check import Settings, check
from opsctl.monitoring.finding import Finding, Severity, finding, length_words, percent_words
from opsctl.monitoring.series import middle, slope
from opsctl.monitoring.snapshot import Part, Snapshot, Space

#: filesystem: what was too full within this time stays so until it is so many per cent below the limit.
_REMEMBERED, _STEADY_PERCENT = timedelta(days=1), 2.0
_DAY_S = 86400.0
#: filling: newest measurements, compared with those a day before: so far back, so many at least, and so near to that.
_NEWEST_S, _POINTS, _NEAR_S = 6 * 3600.0, 3, 2700.0
#: filling: from so many measurements a day on, the largest step is left out: an unpacked archive is no pace.
_STEPS = 12
#: filling: the short view: so long back, and full within so long.
_SHORT, _SOON_S, _SHORT_POINTS = timedelta(hours=6), 12 * 3600.0, 4
#: filling: growth of less than this share of the limit a day, or within the short view, is none.
_DAILY_LEAST, _SHORT_LEAST = 0.002, 0.02
#: filling: once reported it stays so until there is so much more time than `full_within`.
_STEADY = 1.25
#: filling: how far back a day before counts: the newest hours, less a day, and once more for what was so before.
_BACK_S = 4 * _DAY_S


@check(Part.SPACE)
def filesystem(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check that file systems and quotas have space left.

    1: fuller than `[watch] full_percent`. 2: half of the remaining space is used too. 3: one cannot be read. A finding
    ends when the use is two per cent below the limit, so a checkpoint rotation does not end it.
    """
    for space in snapshot.spaces:
        if space.problem:
            text = f"the use of {space.name} cannot be read: {space.problem}"
            yield finding(Severity.UNKNOWN, text, space.name, todo="opsctl disk use")
        for kind, share, words in _fullness(space):
            yield from _full(snapshot, settings, space, kind, share, words)


def _fullness(space: Space) -> Iterator[tuple[str, float, str]]:
    """Yield (what, share of the limit, in words) of bytes and of inodes, as far as they are known."""
    for kind, share, used, limit, words in (
        ("bytes", space.share, space.used_bytes, space.limit_bytes, bytes_words),
        ("inodes", space.inode_share, space.used_inodes, space.limit_inodes, count_words),
    ):
        if share is not None:
            amounts = f": {words(used)} of {words(limit)}" if used is not None and limit else ""
            yield kind, share, amounts


def _full(
    snapshot: Snapshot, settings: Settings, space: Space, kind: str, share: float, words: str
) -> Iterator[Finding]:
    limit, percent = settings.watch.full_percent, 100.0 * share
    was = _most_lately(snapshot, space.name, kind)
    critical = limit + (100.0 - limit) / 2.0
    if percent < (limit - _STEADY_PERCENT if was >= limit else limit):
        return
    is_critical = percent >= (critical - _STEADY_PERCENT / 2 if was >= critical else critical)
    source = f", by {space.how}" if space.how else ""
    yield finding(
        Severity.CRITICAL if is_critical else Severity.WARNING,
        f"{space.name} is {percent:.1f} % full of {kind}{words}",
        f"{space.name} {kind}",
        evidence=(f"{percent:.1f} % of {kind}{source}; [watch] full_percent is {limit:g}",),
        todo="opsctl disk use shows who uses it; opsctl checkpoints prune frees space",
    )


def _most_lately(snapshot: Snapshot, name: str, kind: str) -> float:
    """Return how full it was at most within the last day, in per cent."""
    since = snapshot.now - _REMEMBERED
    lately = takewhile(lambda one: one.at >= since, reversed(snapshot.space_history))
    known = (_fullness(one) for one in lately if one.name == name)
    return max((100.0 * share for of_one in known for its_kind, share, _ in of_one if its_kind == kind), default=0.0)


@dataclass(frozen=True)
class _Point:
    """One measurement."""

    at_s: float  # before now, negative
    used: float
    limit: float


@check(Part.SPACE)
def filling(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check whether a file system will be full soon.

    1: within `[watch] full_within`, by its growth since a day ago; or within 12 hours, by the last six. 2: within a
    day. A daily rotation of checkpoints does not count as growth, nor does a single jump.
    """
    within_s = settings.seconds_of("full_within") or 7 * _DAY_S
    for space in snapshot.spaces:
        history = _of(space, snapshot.space_history)
        for kind in ("bytes", "inodes"):
            found = _filling(space, kind, _points(history, kind), within_s)
            if found is not None:
                yield found


def _of(space: Space, history: Sequence[Space]) -> list[Space]:
    """Return the measurements of this one up to now, oldest first, as far back as they are needed."""
    found = [space]
    for one in reversed(history):
        if (space.at - one.at).total_seconds() > _BACK_S:
            break
        if one.name == space.name and one.at < found[-1].at:
            found.append(one)
    return found[::-1]


def _points(history: Sequence[Space], kind: str) -> list[_Point]:
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
            found.append(_Point(at_s, float(used), float(limit)))
        elif share is not None:
            found.append(_Point(at_s, share, 1.0))
    # Earlier measurements count only where they go up to now.
    return found if found and found[-1].at_s == 0.0 else []


def _filling(space: Space, kind: str, points: Sequence[_Point], within_s: float) -> Finding | None:
    if not points:
        return None
    used, limit = points[-1].used, points[-1].limit
    left = limit - used
    full_in_s, pace, over = None, _growth_a_day(points), "the last day"
    if pace is not None and pace > _DAILY_LEAST * limit:
        full_in_s = left / pace * _DAY_S
        earlier = [one for one in points if one.at_s <= -_NEWEST_S / 2]
        before = _growth_a_day(earlier)
        was_told = before is not None and before > _DAILY_LEAST * limit and left / before * _DAY_S < within_s
        if full_in_s >= within_s * (_STEADY if was_told else 1.0):
            full_in_s = None
    fast = _growth_lately(points, limit)
    if fast is not None and left / fast * _DAY_S < _SOON_S:
        full_in_s, pace, over = left / fast * _DAY_S, fast, f"the last {length_words(_SHORT)}"
    if full_in_s is None or pace is None or left <= 0:
        return None
    words = percent_words if limit == 1.0 else bytes_words if kind == "bytes" else count_words
    return finding(
        Severity.CRITICAL if full_in_s < _DAY_S else Severity.WARNING,
        f"{space.name} will be full of {kind} in {length_words(full_in_s)}: "
        f"{words(left)} left, {words(pace)} more a day",
        f"{space.name} {kind}",
        evidence=(f"{words(used)} of {words(limit)} is used; it grows by {words(pace)} a day, by {over}",),
        todo="free space: opsctl checkpoints prune; see if the scheduler prunes: opsctl cron status",
    )


def _growth_a_day(points: Sequence[_Point]) -> float | None:
    """Return how much more there is than a day ago, the median of the newest: what goes up and down daily cancels.

    None without a measurement of a day ago.
    """
    if not points:
        return None
    end_s = points[-1].at_s
    newest = [place for place, one in enumerate(points) if one.at_s >= end_s - _NEWEST_S]
    newest = newest if len(newest) >= _POINTS else list(range(max(0, len(points) - _POINTS), len(points)))
    growths = []
    for place in newest:
        start = min(range(place + 1), key=lambda one: abs(points[place].at_s - _DAY_S - points[one].at_s))
        if abs(points[place].at_s - _DAY_S - points[start].at_s) > _NEAR_S:
            continue
        steps = [later.used - earlier.used for earlier, later in pairwise(points[start : place + 1])]
        growths.append(sum(steps) - (max(0.0, *steps) if len(steps) >= _STEPS else 0.0))
    return middle(growths) if len(growths) >= _POINTS else None


def _growth_lately(points: Sequence[_Point], limit: float) -> float | None:
    """Return the growth a day by the last hours alone, where that is much."""
    lately = [(one.at_s, one.used) for one in points if one.at_s >= -_SHORT.total_seconds()]
    if len(lately) < _SHORT_POINTS or lately[-1][1] - lately[0][1] < _SHORT_LEAST * limit:
        return None
    pace = slope(lately)
    return pace * _DAY_S if pace is not None and pace > 0 else None


@check(Part.PURGE)
def purge(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check whether the site will soon delete unused files.

    1: it is. 2: within a day, or the latest checkpoint is among them.
    """
    going = snapshot.purge
    if going is None or not going.files:
        return
    left, days = going.first_at - snapshot.now, settings.watch.purge_days
    when = f"in {length_words(left)}" if left > timedelta() else "at any time"
    yield finding(
        Severity.CRITICAL if left < timedelta(days=1) or going.hits_latest else Severity.WARNING,
        f"{'' if going.is_all else 'at least '}{going.files} files of {going.folder}, "
        f"{bytes_words(going.size_bytes)}, are about to be removed by the file system, the first {when}",
        going.folder,
        evidence=(
            f"{'one of the latest checkpoint:' if going.hits_latest else 'the first is'} {going.example}",
            f"not read or written for {f'nearly {days} days' if days else 'long'}",
        ),
        todo="opsctl disk purge lists them; opsctl checkpoints backup copies them",
    )
