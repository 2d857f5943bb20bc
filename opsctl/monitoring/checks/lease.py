"""Does anybody write this run whom the queue does not show, and does whoever it shows still live?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "lease"
HELP = """Does anybody write this run whom the queue does not show, and does whoever it shows still live?

1: somebody trains it whom the queue does not show, or the heartbeat of who does stands still. 2: two write it.
"""


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning about a writer that the queue does not show, critical where it shows another one at work.

    A warning too about one that it shows and whose heartbeat has stopped. Nothing where Slurm cannot say who runs.
    """
    holder, age_s = snapshot.lease.holder, snapshot.lease.age_s
    if holder is None or snapshot.blind is not None:
        return []
    who = f"{holder.named()} (lease {holder.number})"
    if snapshot.lease.is_silent and age_s is not None and any(job.job_id == holder.job_id for job in snapshot.jobs):
        text = f"the heartbeat of {who} has stood still for {age_s // 60:.0f} min: another task may take over"
        return [Finding(CHECK, Severity.WARNING, text, subject="silent", todo="opsctl logs; opsctl attempts")]
    if snapshot.writer_elsewhere is None:
        return []
    if snapshot.running is not None:
        text = f"another writer beside job {snapshot.running.display_id}: {who}, whose heartbeat goes on"
        return [
            Finding(CHECK, Severity.CRITICAL, text, subject="two", todo=f"opsctl attempts; ask {holder.user or who}")
        ]
    text = f"{who} trains this run, which the queue does not show here"
    return [
        Finding(CHECK, Severity.WARNING, text, subject="unseen", todo="opsctl attempts; opsctl status --cluster NAME")
    ]


DETECTOR = Detector(CHECK, find, Part.QUEUE | Part.LEASE, HELP)
