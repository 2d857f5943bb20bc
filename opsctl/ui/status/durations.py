"""How long ago or for how long, as people say it. Pure."""

from __future__ import annotations

from datetime import datetime

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
#: Seconds from which on the age of an answer is shown.
_OLD_S = 5.0


def rough(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h`, `2 d 4 h`, `17 d`: as exact as matters, rounded down. Negative counts as zero."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        return f"{whole // _HOUR} h"
    days, hours = whole // _DAY, whole % _DAY // _HOUR
    return f"{days} d {hours} h" if days < 10 and hours else f"{days} d"


def since(moment: datetime, now: datetime) -> str:
    """How long ago `moment` is, roughly."""
    return rough((now - moment).total_seconds())


def answer_age(age_s: float) -> str:
    """Return how old Slurm's answer about the queue is, as a line of a screen; empty for one of now."""
    return f"Slurm was asked {age_s:.0f} s ago" if age_s > _OLD_S else ""
