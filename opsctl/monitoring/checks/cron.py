"""Does the pseudo-cron that looks after this run still tick?"""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.quantities import length_words, since_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "cron"
HELP = """Does the pseudo-cron still tick?

1: somebody has stopped it. 2: its last tick began more than two periods ago. 3: nobody can see.
"""
#: Periods from one tick to the next: one may have to wait in the queue.
LATE = 2.0
#: A period of seconds, in a trial, is no time for Slurm.
_LEAST = timedelta(seconds=30)


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A finding about a cron that is late, was stopped, or cannot be seen; none where there never was one."""
    seen = snapshot.cron
    if seen is None:
        return []
    beat, period = seen.heartbeat_at, timedelta(seconds=seen.period_s)
    if not seen.is_started:
        if beat is None:
            return []
        text = f"the cron in {seen.folder} is stopped: nothing watches this run, nor submits for it"
        evidence = (f"its last tick was {beat.astimezone().isoformat(timespec='minutes')}",)
        return [
            Finding(
                CHECK, Severity.WARNING, text, since=beat, evidence=evidence, todo=f"opsctl cron start{seen.option}"
            )
        ]
    expected = beat + period if beat is not None else seen.next_due_at
    if expected is None:
        return []
    late = snapshot.now - expected
    if late <= max(_LEAST, (LATE - 1.0) * period):
        return []
    last = "has never ticked" if beat is None else f"has not ticked for {length_words(snapshot.now - beat)}"
    return [
        Finding(
            CHECK,
            Severity.CRITICAL,
            f"the cron in {seen.folder} {last}, and should every {length_words(seen.period_s)}",
            alert=settings.team,
            since=expected,
            evidence=(
                f"a tick was due {since_words(expected)}",
                *([f"carried by {seen.carried_by}"] if seen.carried_by else []),
            ),
            todo=f"opsctl cron status{seen.option}; opsctl cron start{seen.option}",
        )
    ]


def _blind(snapshot: Snapshot) -> str:
    return snapshot.cron.problem if snapshot.cron is not None else ""


DETECTOR = Detector(CHECK, find, Part.CRON, HELP, blind=_blind, is_of_desk=True)
