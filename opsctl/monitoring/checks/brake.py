"""Do the attempts get anywhere? After so many in a row that do not, the chain stops by itself."""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import BRAKE_ATTEMPTS

CHECK = "brake"
HELP = """Do the attempts get anywhere?

1: the last two in a row made no new checkpoint; those that each died of another node's hardware are not counted, up to
nine of them. 2: so many that the chain stops by itself, or one that stopped itself, as too many iterations in a row
were skipped or had no finite loss.
"""
#: Attempts that are told apart.
_NAMED = 5


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning from the second attempt in a row that made no checkpoint; critical when the chain stops of it."""
    row = snapshot.attempts_without_progress
    if snapshot.is_finished:
        return []
    if snapshot.learned_nothing:
        return [_learned_nothing(snapshot)]
    if row < 2:
        return []
    what = "the chain stops" if row >= BRAKE_ATTEMPTS else f"at {BRAKE_ATTEMPTS} the chain stops"
    text = f"{row} attempts in a row without a new checkpoint, {what}: opsctl attempts"
    last = [one for one in snapshot.attempts if one.closed_at is not None][-row:]
    return [
        Finding(
            CHECK,
            Severity.CRITICAL if row >= BRAKE_ATTEMPTS else Severity.WARNING,
            text,
            since=last[0].closed_at if last else None,
            evidence=tuple(map(_told, last[-_NAMED:])),
            todo="opsctl triage; opsctl attempts; opsctl logs; opsctl submit lets the brake go",
        )
    ]


def _told(one: Attempt) -> str:
    cause = f", {one.verdict.words}" if one.verdict is not None and one.verdict.is_known else ""
    return f"attempt {one.number}, {one.display_id}: {one.reason}{cause}"


def _learned_nothing(snapshot: Snapshot) -> Finding:
    last = next(one for one in reversed(snapshot.attempts) if one.reason == Ending.SKIPPED_ITERATIONS)
    return Finding(
        CHECK,
        Severity.CRITICAL,
        "the training stopped itself, its iterations were all skipped or had no finite loss; the chain stops",
        since=last.closed_at,
        evidence=(_told(last),),
        todo="opsctl logs; opsctl checkpoints rollback, or other options; then opsctl submit",
    )


DETECTOR = Detector(CHECK, find, Part.ATTEMPTS | Part.PROGRESS, HELP)
