"""Is the kill switch triggered, so that nothing will train?"""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.quantities import length_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "kill_switch"
HELP = """Is the kill switch triggered, so that nothing will train?

1: it is. 2: it has been for a day, and the training is not finished: was it forgotten?
"""
FORGOTTEN = timedelta(days=1)


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A finding that says who triggered it; nothing about one that cannot be seen."""
    switch = snapshot.kill_switch
    if switch is None or not switch.is_triggered:
        return []
    story = switch.describe()
    text = f"the kill switch is triggered {story}: tasks save and leave until opsctl kill-switch deactivate"
    # Who writes it by hand may leave the zone away, and then nobody knows when that was.
    since = switch.at if switch.at is not None and switch.at.tzinfo is not None else None
    is_forgotten = since is not None and snapshot.now - since >= FORGOTTEN and not snapshot.is_finished
    evidence = [f"{switch.path} is there"]
    if since is not None:
        evidence.append(f"for {length_words(snapshot.now - since)}")
    severity = Severity.CRITICAL if is_forgotten else Severity.WARNING
    todo = "opsctl kill-switch deactivate"
    return [Finding(CHECK, severity, text, since=since, evidence=tuple(evidence), todo=todo)]


def _blind(snapshot: Snapshot) -> str:
    return "the kill switch cannot be looked at" if snapshot.kill_switch is None else ""


DETECTOR = Detector(CHECK, find, Part.KILL_SWITCH | Part.PROGRESS, HELP, Part.PROGRESS, _blind)
