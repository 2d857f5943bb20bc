"""Do alerts get through?"""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.quantities import length_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "channels"
HELP = """Do alerts get through?

1: a channel has failed for 45 minutes or longer. 2: for a day, or every channel fails.
"""
#: A mail server that restarts is back by then.
FAILING = timedelta(minutes=45)
LONG = timedelta(days=1)


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A finding for each channel that fails."""
    failing = [
        (one, one.failing_since)
        for one in snapshot.channels
        if one.failing_since is not None and snapshot.now - one.failing_since >= FAILING
    ]
    found = []
    for one, since in failing:
        length = snapshot.now - since
        is_all = len(failing) == len(snapshot.channels)
        text = f"alerts do not get through {one.name} for {length_words(length)}"
        evidence = (
            f"{one.waiting} messages wait for it",
            *([one.detail] if one.detail else []),
            *(["no other channel works"] if is_all else []),
        )
        severity = Severity.CRITICAL if is_all or length >= LONG else Severity.WARNING
        todo = "opsctl alerts test; what waits is sent when it works again"
        found.append(Finding(CHECK, severity, text, subject=one.name, since=since, evidence=evidence, todo=todo))
    return found


DETECTOR = Detector(CHECK, find, Part.CHANNELS, HELP)
