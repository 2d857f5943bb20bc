"""Can the next task tell which checkpoint it goes on from?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "checkpoints"
HELP = """Can the next task tell which checkpoint it goes on from?

2: `latest`, or the manifest that it names, is missing or damaged, so tasks refuse to start. 1: so it is, beside a
training whose next save makes a new one. The same of a latest checkpoint that is not finite (`--save-non-finite`).
"""


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A finding where `latest` or its checkpoint's manifest is missing or damaged, with the way out.

    Critical, for tasks refuse to start; a warning while one trains: its next save makes a new latest.
    """
    problem, latest = snapshot.checkpoint_problem, snapshot.checkpoint
    if problem is None and latest is not None and latest.not_finite:
        problem = f"the latest checkpoint, iteration {latest.iteration}'s, is not finite: {latest.not_finite}"
    if problem is None:
        return []
    severity = Severity.CRITICAL if snapshot.running is None else Severity.WARNING
    return [Finding(CHECK, severity, problem, todo="opsctl checkpoints list; opsctl checkpoints repoint")]


DETECTOR = Detector(CHECK, find, Part.QUEUE | Part.PROGRESS, HELP, can_do_without=Part.QUEUE)
