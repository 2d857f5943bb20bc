"""Attempts and spans for tests, in seconds since a beginning."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from opsctl.run.attempts.events import Attempt
from opsctl.run.logs.spans import Span

BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGINNING + timedelta(seconds=seconds)


def attempt(number: int, opened: float, closed: float | None, **more: Any) -> Attempt:
    """Return an attempt whose chain was submitted at the beginning; by default it left in time."""
    known: dict[str, Any] = {
        "reason": None if closed is None else "exit-duration",
        "chain_submitted_at": at(0),
        "closed_at": None if closed is None else at(closed),
    }
    return Attempt(
        **{"number": number, "id": f"{number}-x", "job_id": 70 + number, "opened_at": at(opened), **known, **more}
    )


def span(number: int, begins_at: int, ready: float | None, *lines: tuple[int, float], **more: Any) -> Span:
    """Return a span. Lines are (iteration, seconds of the iterations since the previous line)."""
    made = Span(number, 70 + number, at(0), begins_at, None if ready is None else at(ready), **more)
    for iteration, seconds in lines:
        made.iterations.append(iteration)
        made.seconds.append(seconds)
    return made
