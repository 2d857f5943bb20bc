"""Numbers with their units, as findings say them. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from opsctl.run.config.schema import WatchTable
from opsctl.slurm.durations import parse_duration_s


def length_words(length: timedelta | float) -> str:
    """`45 s`, `30 min`, `2.2 h`, `3.1 days`; a number is in seconds."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 120 * 60:
        return f"{int(seconds // 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def percent_words(share: float) -> str:
    """`84.2 %` of 0.842."""
    return f"{100 * share:.3g} %"


def since_words(moment: datetime) -> str:
    """`since 2022-04-28 09:15`, in local time."""
    return f"since {moment.astimezone().strftime('%Y-%m-%d %H:%M')}"


def seconds_of(watch: WatchTable, key: str) -> float | None:
    """A duration of `[watch]` in seconds; None where it is not set."""
    written = getattr(watch, key)
    return None if written is None else float(parse_duration_s(written))
