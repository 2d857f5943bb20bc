"""What the ends of a run's attempts say of nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.diagnosis.nodes.policy import WEIGHTS
from opsctl.run.attempts.ending import AS_PLANNED, Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.outcome import describe

_BAD = frozenset({Ending.FAILED, Ending.SIGNAL, Ending.HANG, Ending.NODE_FAILURE, Ending.OUT_OF_MEMORY})


@dataclass(frozen=True)
class End:
    """One attempt's end, as far as it speaks for or against nodes."""

    at: datetime
    nodes: frozenset[str]  # that took part
    blamed: frozenset[str] = frozenset()  # whose hardware ended it
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
        found.append(End(at, frozenset(attempt.nodes), blamed, attempt.reason in AS_PLANNED, words))
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
    """Return the nodes whose hardware ended it: those that Slurm lost, and the one that triage names.

    A rank that was killed, and a cause that is not known, blame no node: a person or the program may have done it.
    """
    lost, verdict, first = frozenset(attempt.lost_nodes), attempt.verdict, attempt.first_failure
    if verdict is None or not verdict.is_known:
        return lost
    weight = WEIGHTS.get(verdict.cause)
    if verdict.user_fault or weight is None:
        return frozenset()
    name = verdict.node or (first.node if first is not None else "")
    return lost | {name} if name and weight.is_hardware else lost


def _how(attempt: Attempt) -> str:
    if attempt.verdict is not None and attempt.verdict.summary:
        return attempt.verdict.summary
    if attempt.first_failure is not None:
        return describe(attempt.first_failure)
    return f"{attempt.reason}{f', {attempt.note}' if attempt.note else ''}"
