"""Does the run wait for its nodes longer than it usually does?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.idle import earlier_waits_s, idle_since
from opsctl.monitoring.quantities import length_words, seconds_of, since_words
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.slurm.states import Reason

CHECK = "waiting"
HELP = """Does the run wait for its nodes longer than usual?

1: nothing of it runs, and it has waited longer than `[watch] wait_most`; without that, longer than 1.5 times the
longest of its last waits, and a day. A wait for a time that somebody gave, or for the end of a maintenance, is none.
"""
#: Newest waits that say what is usual, how many it takes, and by how much a new one is longer than all of them.
WAITS, WAITS_LEAST, LONGER = 40, 5, 1.5
#: Less is no news on a shared cluster; with too few waits known only what nobody would call usual is.
LEAST_S, UNKNOWN_S = 24 * 3600.0, 48 * 3600.0
_MAINTENANCE = "maintenance"


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A warning about a wait without precedent. What only a person can start is no wait: `training` says that."""
    stopped = snapshot.kill_switch is not None and snapshot.kill_switch.is_triggered
    if stopped or snapshot.is_finished or snapshot.running is not None or snapshot.unseen or snapshot.blind is not None:
        return []
    waits = [job for job in snapshot.behind if job.is_pending and not job.is_held and not job.cannot_start]
    since = idle_since(snapshot)
    if not waits or since is None or snapshot.writer_elsewhere is not None:
        return []
    first = waits[0]
    if first.reason == Reason.BEGIN_TIME or _MAINTENANCE in first.reason.lower():
        return []
    waited_s = (snapshot.now - since).total_seconds()
    most_s, why = _most(snapshot, settings)
    if waited_s <= most_s:
        return []
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"{first.display_id} has waited {length_words(waited_s)} for its nodes on {first.partition}: {why}",
            since=since,
            evidence=(f"waits {since_words(since)}, Slurm's reason: {first.reason}",),
            todo=f"squeue --start -j {first.array_job_id}; sprio -j {first.array_job_id}",
        )
    ]


def _most(snapshot: Snapshot, settings: Settings) -> tuple[float, str]:
    """(longest usual wait in seconds, where that is from)."""
    told_s = seconds_of(settings.watch, "wait_most")
    if told_s is not None:
        return told_s, f"[watch] wait_most is {length_words(told_s)}"
    waits = earlier_waits_s(snapshot.attempts)[-WAITS:]
    if len(waits) < WAITS_LEAST:
        return UNKNOWN_S, f"more than {length_words(UNKNOWN_S)}, and how long is usual here is not known yet"
    longest = max(waits)
    return max(LEAST_S, LONGER * longest), f"the longest of its last {len(waits)} waits was {length_words(longest)}"


DETECTOR = Detector(
    CHECK, find, Part.QUEUE | Part.PROGRESS | Part.ATTEMPTS | Part.LOG | Part.LEASE | Part.KILL_SWITCH, HELP
)
