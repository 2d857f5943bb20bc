"""Does what is to go to the hub get there?"""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.observed import Unsent
from opsctl.monitoring.quantities import length_words, since_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "hub_sync"
HELP = """Does what is to go to the hub get there?

1: something of a kind that `[hub]` names waits for three of its syncs, which are hourly, of checkpoints daily.
"""
_PERIODS = 3
_HOURLY, _DAILY = timedelta(hours=1), timedelta(days=1)


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning for each kind that the sync has fallen behind with."""
    return [_finding(one, snapshot) for one in snapshot.unsent if snapshot.now - one.since >= _limit(one)]


def _limit(unsent: Unsent) -> timedelta:
    return _PERIODS * (_DAILY if unsent.kind == "checkpoints" else _HOURLY)


def _finding(unsent: Unsent, snapshot: Snapshot) -> Finding:
    what = "checkpoints" if unsent.kind == "checkpoints" else f"files of {unsent.kind}"
    last = unsent.last_sent_at
    return Finding(
        CHECK,
        Severity.WARNING,
        f"{what} have waited for the hub for {length_words(snapshot.now - unsent.since)}",
        subject=unsent.kind,
        since=unsent.since + _limit(unsent),
        evidence=(
            f"{unsent.files} to be sent, such as {unsent.example}",
            "none was ever sent" if last is None else f"nothing was sent {since_words(last)}",
        ),
        todo=f"opsctl hub sync {unsent.kind} says what is in the way; opsctl hub check; opsctl cron status",
    )


DETECTOR = Detector(CHECK, find, Part.HUB, HELP)
