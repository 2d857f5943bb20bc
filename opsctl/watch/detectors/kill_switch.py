"""Is the kill switch triggered, so that nothing will train?"""

from __future__ import annotations

from opsctl.watch.detector import Detector, Settings
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.snapshot import Part, Snapshot

CHECK = "kill_switch"


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning that says who triggered it; nothing about one that cannot be seen."""
    switch = snapshot.kill_switch
    if switch is None or not switch.is_triggered:
        return []
    story = switch.describe()
    text = f"the kill switch is triggered {story}: tasks save and leave until opsctl kill-switch deactivate"
    return [Finding(CHECK, Severity.WARNING, text)]


DETECTOR = Detector(CHECK, find, Part.KILL_SWITCH)
