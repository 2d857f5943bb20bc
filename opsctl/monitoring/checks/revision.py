"""Can the tasks read what they are to train?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "revision"
HELP = """Can the tasks read what they are to train?

2: the newest revision is damaged, and tasks that start now refuse it.
"""


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A finding about a newest revision that is damaged: tasks that start now refuse it."""
    if snapshot.revision_problem is None:
        return []
    return [Finding(CHECK, Severity.CRITICAL, f"no task can start: {snapshot.revision_problem}", todo="opsctl revise")]


DETECTOR = Detector(CHECK, find, Part.PROGRESS, HELP)
