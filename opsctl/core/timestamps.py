"""Moments with a zone, and how they are written: ISO 8601, to the second, in local time with its offset."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload


def now() -> datetime:
    """Return the present time in the local zone."""
    return datetime.now(UTC).astimezone()


@overload
def iso(moment: datetime, timespec: str = "seconds") -> str: ...
@overload
def iso(moment: None, timespec: str = "seconds") -> None: ...
@overload
def iso(moment: datetime | None, timespec: str = "seconds") -> str | None: ...
def iso(moment: datetime | None, timespec: str = "seconds") -> str | None:
    """`moment` in local time, down to `timespec`; None stays None."""
    return _local(moment).isoformat(timespec=timespec) if moment else None


@overload
def to_the_second(moment: datetime) -> datetime: ...
@overload
def to_the_second(moment: datetime | None) -> datetime | None: ...
def to_the_second(moment: datetime | None) -> datetime | None:
    """`moment` in local time without its fraction of a second; None stays None."""
    return _local(moment).replace(microsecond=0) if moment else None


def _local(moment: datetime) -> datetime:
    """Return `moment` in local time; unchanged at either end of the calendar, which an edited file may contain."""
    try:
        return moment.astimezone()
    except (OverflowError, ValueError):
        return moment
