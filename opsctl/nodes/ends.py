"""What the ends of a run's attempts say of nodes. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.attempts.cause import describe, signal_of
from opsctl.attempts.ending import Ending
from opsctl.attempts.events import Attempt
from opsctl.nodes.policy import OF_NO_NODE

_BAD = frozenset({Ending.FAILED, Ending.SIGNAL, Ending.HANG, Ending.NODE_FAILURE, Ending.OUT_OF_MEMORY})
_GOOD = frozenset(
    {
        *(Ending.FINISHED, Ending.EXIT_DURATION, Ending.EXIT_INTERVAL, Ending.EXIT_SAMPLES, Ending.STOP_REQUEST),
        *(Ending.KILL_SWITCH, Ending.TIME_LIMIT, Ending.COMPLETED),
    }
)
_SENT = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class End:
    """One attempt's end, as far as it speaks for or against nodes."""

    at: datetime
    nodes: frozenset[str]  # that took part
    blamed: frozenset[str] = frozenset()  # on which it ended badly
    is_good: bool = False
    words: str = ""  # attempt, job, what happened


def ends_of(attempts: Iterable[Attempt]) -> list[End]:
    """Those of attempts that have ended, oldest first. What is the user's fault blames nobody."""
    found = []
    for attempt in attempts:
        at = attempt.closed_at
        if at is None or attempt.reason is None:
            continue
        blamed = _blamed(attempt) if attempt.reason in _BAD else frozenset()
        words = f"attempt {attempt.number}, job {attempt.display_id}: {_how(attempt)}" if blamed else ""
        found.append(End(at, frozenset(attempt.nodes), blamed, attempt.reason in _GOOD, words))
    return found


def in_a_row(ends: Sequence[End], node: str, since: datetime | None) -> list[End]:
    """The newest bad ends on `node`, after `since`, with no good one between them that it took part in; newest first.

    What ended on another node meanwhile, or by the user's fault, is no word for it.
    """
    row = []
    for end in reversed(ends):
        if since is not None and end.at <= since:
            break
        if node in end.blamed:
            row.append(end)
        elif end.is_good and node in end.nodes:
            break
    return row


def _blamed(attempt: Attempt) -> frozenset[str]:
    """The nodes that it ended badly on: Slurm's lost ones, and that of the rank that failed first."""
    verdict, first = attempt.verdict, attempt.first_failure
    lost = frozenset(attempt.lost_nodes)
    if verdict is not None and (verdict.user_fault or verdict.cause in OF_NO_NODE):
        return frozenset()
    if verdict is not None and verdict.is_known:
        name = verdict.node or (first.node if first is not None else "")
        return lost | {name} if name else lost
    # Nobody has said what it was. A rank that raised something may have met a fault of the program's own, which strikes
    # on any node; one that was killed by a signal has not.
    if first is not None and first.node and signal_of(first) not in (None, *_SENT):
        return lost | {first.node}
    return lost


def _how(attempt: Attempt) -> str:
    if attempt.verdict is not None and attempt.verdict.summary:
        return attempt.verdict.summary
    if attempt.first_failure is not None:
        return describe(attempt.first_failure)
    return f"{attempt.reason}{f', {attempt.note}' if attempt.note else ''}"
