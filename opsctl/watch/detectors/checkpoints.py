"""Can the next task tell which checkpoint it goes on from?"""

from __future__ import annotations

from opsctl.watch.detector import Detector, Settings
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.snapshot import Part, Snapshot

CHECK = "checkpoints"


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A finding where `latest` or its checkpoint's manifest is missing or damaged, with the way out.

    Critical, for tasks refuse to start; a warning while one trains: its next save makes a new latest.
    """
    problem = snapshot.checkpoint_problem
    if problem is None:
        return []
    return [Finding(CHECK, Severity.CRITICAL if snapshot.running is None else Severity.WARNING, problem)]


DETECTOR = Detector(CHECK, find, Part.QUEUE | Part.PROGRESS)
