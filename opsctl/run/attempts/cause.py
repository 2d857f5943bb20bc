"""Which rank failed first. Those that were talking to it fail within seconds; they are not the cause."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from datetime import UTC, datetime

from opsctl.core.output import printable
from trainer.formats.attempt.attempt_records import Failure
from trainer.formats.attempt.lost_peers import is_lost_peer, says_nothing, signal_name

#: Failures noted within this many seconds of the earliest are one event: nodes' clocks differ, and followers notice a
#: lost peer at once, sometimes before its own launcher does.
SAME_EVENT_S = 3.0
_NO_TIME = datetime.max.replace(tzinfo=UTC)


def elect(failures: Sequence[Failure]) -> tuple[Failure | None, tuple[Failure, ...]]:
    """(the failure that caused the others, the others in order of time).

    Among those of the first event: a rank that was killed or raised something of its own, before one that left without
    a word, before one that lost a peer, before one that was told to end. Then by time, then by rank.
    """
    if not failures:
        return None, ()
    earliest = min(_time(item) for item in failures)
    first_event = [item for item in failures if _within(item, earliest)]
    cause = min(first_event, key=lambda item: (_followership(item), _time(item), item.rank))
    rest = sorted((item for item in failures if item is not cause), key=lambda item: (_time(item), item.rank))
    return cause, tuple(rest)


def _followership(item: Failure) -> int:
    """How surely a failure only follows another: 0 is a cause of its own."""
    ended_by = signal_of(item)
    if ended_by in (signal.SIGTERM, signal.SIGINT):
        return 3
    if is_lost_peer(item.message):
        return 2
    if ended_by is not None or _own_words(item):
        return 0
    return 1


def signal_of(item: Failure) -> int | None:
    """The signal that ended a rank, from whichever field tells it."""
    if item.signal:
        return abs(item.signal)
    return -item.exit_code if item.exit_code is not None and item.exit_code < 0 else None


def _time(item: Failure) -> datetime:
    return item.failed_at or _NO_TIME


def _within(item: Failure, earliest: datetime) -> bool:
    return _time(item) == earliest or (_time(item) - earliest).total_seconds() <= SAME_EVENT_S


def describe(item: Failure) -> str:
    """A failure in a few words: rank, node, how."""
    ended_by = signal_of(item)
    if ended_by is not None:
        how = f"ended by {signal_name(ended_by)}"
    elif item.exit_code is not None:
        how = f"exit code {item.exit_code}"
    else:
        how = "failed"
    first_line = _own_words(item)
    return f"rank {item.rank} on {item.node or 'an unknown node'} {how}" + (
        f": {first_line[:200]}" if first_line else ""
    )


def _own_words(item: Failure) -> str:
    """The first line that the rank itself left, "" when it left none."""
    lines = (printable(line.strip()) for line in item.message.splitlines())
    line = next((line for line in lines if line), "")
    return "" if says_nothing(line) else line
