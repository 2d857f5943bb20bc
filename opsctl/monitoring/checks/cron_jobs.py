"""Do the pseudo-cron's jobs do their work?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.quantities import since_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "cron_jobs"
HELP = """Do the pseudo-cron's jobs do their work?

1: one has failed twice in a row, a daily one once; or it hangs, is missing, or nobody knows what became of it.
"""
#: Failures in a row of a job that comes again within the hour, and of one that does not.
HOURLY, DAILY = 2, 1
_DAILY = "daily/"
_WORDS = {"hanging": "hangs", "missing": "is missing", "lost": "was started, and nobody knows what became of it"}


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning for each job that does not."""
    if snapshot.cron is None or not snapshot.cron.is_started:
        return []
    found = []
    for job in snapshot.cron.jobs:
        words = _WORDS.get(job.state)
        if job.failures >= (DAILY if job.name.startswith(_DAILY) else HOURLY):
            words = f"has failed {job.failures} times in a row" if job.failures > 1 else "has failed"
        if words is None:
            continue
        detail = f": {job.detail}" if job.detail else ""
        evidence = tuple(f"{job.name} {job.state} {since_words(job.since)}" for _ in (1,) if job.since)
        option = snapshot.cron.option
        todo = f"opsctl cron logs {job.name}{option}; opsctl cron run {job.name}{option}"
        text = f"cron job {job.name} {words}{detail}"
        found.append(
            Finding(CHECK, Severity.WARNING, text, subject=job.name, since=job.since, evidence=evidence, todo=todo)
        )
    return found


def _blind(snapshot: Snapshot) -> str:
    return snapshot.cron.problem if snapshot.cron is not None else ""


DETECTOR = Detector(CHECK, find, Part.CRON, HELP, blind=_blind, is_of_desk=True)
