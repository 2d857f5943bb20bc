"""Do the attempts get anywhere? After so many in a row that do not, the chain stops by itself."""

from __future__ import annotations

from opsctl.attempts.brake import BRAKE_ATTEMPTS
from opsctl.watch.detector import Detector, Settings
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.snapshot import Part, Snapshot

CHECK = "brake"


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning from the second attempt in a row that made no checkpoint, unless the training is finished."""
    row = snapshot.attempts_without_progress
    if row < 2 or snapshot.is_finished:
        return []
    what = "the chain stops" if row >= BRAKE_ATTEMPTS else f"at {BRAKE_ATTEMPTS} the chain stops"
    text = f"{row} attempts in a row without a new checkpoint, {what}: opsctl attempts"
    return [Finding(CHECK, Severity.WARNING, text)]


DETECTOR = Detector(CHECK, find, Part.ATTEMPTS | Part.PROGRESS)
