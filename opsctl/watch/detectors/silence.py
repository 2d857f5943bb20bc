"""Does a training that runs also log?"""

from __future__ import annotations

from datetime import timedelta

from opsctl.slurm.states import State
from opsctl.watch.detector import Detector, Settings
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.snapshot import Part, Snapshot

CHECK = "silence"
#: A running training that has logged nothing for so many iterations, and so long, is worth a look.
SILENT_ITERATIONS = 10
SILENT_LEAST = timedelta(minutes=10)


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning about a running task that has logged no iteration for much longer than one takes."""
    job, typical_s, logged_at = snapshot.running, snapshot.measured.seconds_per_iteration, snapshot.last_logged_at
    if job is None or job.state != State.RUNNING or not typical_s or logged_at is None:
        return []
    since = logged_at if job.started_at is None else max(logged_at, job.started_at)
    silent = snapshot.now - since
    if silent < max(SILENT_LEAST, timedelta(seconds=SILENT_ITERATIONS * typical_s)):
        return []
    times = silent.total_seconds() / typical_s
    text = f"no iteration logged for {_words(silent)}, {times:.0f} times what one takes: opsctl logs"
    return [Finding(CHECK, Severity.WARNING, text)]


def _words(length: timedelta) -> str:
    minutes = int(length.total_seconds() // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


DETECTOR = Detector(CHECK, find, Part.QUEUE | Part.LOG)
