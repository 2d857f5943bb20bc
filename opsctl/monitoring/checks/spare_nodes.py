"""Are there enough healthy nodes for the next task to start?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "spare_nodes"
HELP = """Are there enough healthy nodes for the next task to start?

2: the partition has fewer than the run needs, and nothing runs. 1: it runs, and could not start again; or there are
fewer than `[watch] spare_nodes` beyond what it needs. 3: Slurm does not tell.
"""


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A finding when one more dead node, or none, keeps the training from going on.

    Nothing where nobody can tell which nodes the run may be given, as on a cluster without a default partition.
    """
    seen, spare = snapshot.partition, settings.watch.spare_nodes
    running = snapshot.running
    needs = running.node_count if running is not None else settings.nodes
    if seen is None or not needs or snapshot.is_finished or seen.healthy >= needs + spare:
        return []
    short = seen.healthy < needs
    text = f"{seen.healthy} of {seen.total} nodes of {seen.name} are healthy, and the run needs {needs}"
    if not short:
        text += f" with {spare} to spare"
    return [
        Finding(
            CHECK,
            Severity.CRITICAL if short and running is None else Severity.WARNING,
            text,
            alert=settings.team if short and running is None else None,
            evidence=(f"not healthy: {seen.example}",) if seen.example else (),
            todo=f"sinfo -R -p {seen.name}; tell the cluster's administrators, or opsctl submit --nodes N",
        )
    ]


DETECTOR = Detector(CHECK, find, Part.PARTITION | Part.QUEUE | Part.PROGRESS, HELP)
