"""Are the nodes that the training runs on fit for it?"""

from __future__ import annotations

from opsctl.watch.detector import Detector, Settings
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.snapshot import Part, Snapshot

CHECK = "nodes"
#: Nodes that are named in one finding each; the rest are counted.
_NAMED = 3


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning for each node of the running job that is drained, down or failing, with the reason that Slurm has."""
    if snapshot.running is None:
        return []
    bad = [node for node in snapshot.nodes if node.is_out_of_service]
    texts = [
        f"node {node.name} of the running job is {node.state}{f': {node.reason}' if node.reason else ''}"
        for node in bad[:_NAMED]
    ]
    if len(bad) > _NAMED:
        texts.append(f"and {len(bad) - _NAMED} more nodes of the running job are out of service: sinfo -R")
    return [Finding(CHECK, Severity.WARNING, text) for text in texts]


DETECTOR = Detector(CHECK, find, Part.QUEUE | Part.NODES)
