"""Does the training run, where nodes are set aside for it and waiting is not enough?"""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.idle import idle_since
from opsctl.monitoring.quantities import length_words, since_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "must_run"
HELP = """Does the training run, where `[watch] must_run` says that waiting is not enough?

2: it is in the queue and has had no nodes for half an hour. That it is not even there, `opsctl watch training` says.
"""
#: Between two tasks Slurm takes minutes.
PAUSE_MOST = timedelta(minutes=30)


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A critical finding about a run that only waits, unless it is finished or somebody stopped it on purpose."""
    stopped = snapshot.kill_switch is not None and snapshot.kill_switch.is_triggered
    if not settings.watch.must_run or stopped or snapshot.is_finished or snapshot.blind is not None:
        return []
    if snapshot.running is not None or not snapshot.jobs or snapshot.unseen or snapshot.writer_elsewhere is not None:
        return []
    since = idle_since(snapshot)
    if since is not None and snapshot.now - since < PAUSE_MOST:
        return []
    job = snapshot.behind[0]
    how_long = f" for {length_words(snapshot.now - since)}" if since else ""
    return [
        Finding(
            CHECK,
            Severity.CRITICAL,
            f"{settings.name} is in the queue and has not run{how_long}, though nodes are set aside for it",
            alert=settings.team,
            since=since,
            evidence=(
                f"[watch] must_run = true; {job.display_id} on partition {job.partition} waits: {job.reason}",
                *([f"no nodes {since_words(since)}"] if since else []),
            ),
            todo=f"scontrol show job {job.job_id} says why; scontrol show reservation",
        )
    ]


DETECTOR = Detector(
    CHECK, find, Part.QUEUE | Part.PROGRESS | Part.ATTEMPTS | Part.LOG | Part.LEASE | Part.KILL_SWITCH, HELP
)
