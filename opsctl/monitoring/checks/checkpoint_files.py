"""Are the newest checkpoints what their manifests say?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.observed import FaultyCheckpoint
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "checkpoint_files"
HELP = """Are the newest checkpoints whole: is every file there, and as long as the manifest says?

Damage that the last `opsctl checkpoints verify` found counts too.

2: the one that the next task goes on from is not. 1: another one is not.
"""


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A finding for each checkpoint that is not, but what may be a save that goes on."""
    return [_finding(one) for one in snapshot.faulty if not (one.is_leftover and _may_go_on(snapshot, one))]


def _finding(one: FaultyCheckpoint) -> Finding:
    if one.is_leftover:
        text = f"{one.name} is what a save left that never finished: {one.fault}"
        todo = "nothing goes on from it; the next save removes it: is there space for that? opsctl watch filesystem"
        return Finding(CHECK, Severity.WARNING, text, subject=one.name, since=one.changed_at, todo=todo)
    todo = "opsctl checkpoints list; nothing goes on from it, and no copy of it is worth anything"
    if one.is_latest:
        todo = "opsctl checkpoints list; opsctl checkpoints repoint to a whole one"
    return Finding(
        CHECK,
        Severity.CRITICAL if one.is_latest else Severity.WARNING,
        f"checkpoint {one.name}{', the latest,' if one.is_latest else ''} is not whole: {one.fault}",
        subject=one.name,
        since=one.changed_at,
        evidence=(f"{one.name}: {one.fault}",),
        todo=todo,
    )


def _may_go_on(snapshot: Snapshot, one: FaultyCheckpoint) -> bool:
    """Whether a task that runs may be writing it; where nobody sees what runs, somebody may."""
    job = snapshot.running
    if snapshot.blind is not None or snapshot.unseen or snapshot.writer_elsewhere is not None:
        return True
    if job is None or one.changed_at is None:
        return job is not None
    return job.started_at is None or one.changed_at >= job.started_at


DETECTOR = Detector(CHECK, find, Part.FILES | Part.QUEUE | Part.LEASE, HELP, can_do_without=Part.QUEUE | Part.LEASE)
