"""Are the nodes that the training runs on fit for it?"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.attempts.ending import Ending

CHECK = "nodes"
HELP = """Are the nodes that the training runs on fit for it?

1: one of them is drained, down or failing; or it is suspect, since Slurm lost it under an attempt of the last days, or
two of the last attempts failed on it first.
"""
#: Nodes that are named in one finding each; the rest are counted.
_NAMED = 3
#: What counts against a node: attempts that ended within this time, of the newest so many.
RECENT, NEWEST, FAILURES = timedelta(days=3), 6, 2
_FAILED = frozenset({Ending.FAILED, Ending.SIGNAL, Ending.HANG, Ending.NODE_FAILURE, Ending.OUT_OF_MEMORY})


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning for each node of the running job that is out of service or suspect, with what speaks against it."""
    job = snapshot.running
    if job is None:
        return []
    todo = f"opsctl logs; for the next chain: opsctl submit --exclude NODE; scontrol show job {job.job_id}"
    bad = [node for node in snapshot.nodes if node.is_out_of_service]
    found = [
        Finding(
            CHECK,
            Severity.WARNING,
            f"node {node.name} of the running job is {node.state}{f': {node.reason}' if node.reason else ''}",
            subject=node.name,
            evidence=(f"sinfo: {node.name} {node.state}, job {job.display_id} runs on it",),
            todo=todo,
        )
        for node in bad[:_NAMED]
    ]
    if len(bad) > _NAMED:
        text = f"and {len(bad) - _NAMED} more nodes of the running job are out of service: sinfo -R"
        found.append(Finding(CHECK, Severity.WARNING, text, subject="more", todo="sinfo -R"))
    known = {node.name for node in bad}
    for name, why in _suspects(snapshot).items():
        if name not in known:
            text = f"node {name} of the running job is suspect: {why}"
            tests = (
                f"opsctl probe --nodes 1 --nodelist {name} tests it; opsctl exclude add {name} --why TEXT keeps off it"
            )
            found.append(Finding(CHECK, Severity.WARNING, text, subject=name, evidence=(why,), todo=tests))
    return found


def _suspects(snapshot: Snapshot) -> dict[str, str]:
    """Node of the running job -> what earlier attempts have against it."""
    present = {node.name for node in snapshot.nodes}
    since = snapshot.now - RECENT
    recent = [
        one
        for one in snapshot.attempts[-NEWEST:]
        if one.closed_at is not None and one.closed_at >= since and one.reason in _FAILED
    ]
    lost = {name: one.number for one in recent for name in one.lost_nodes}
    # What is wrong with the program itself mostly shows on the first node, where rank 0 is: that speaks for nothing.
    first = Counter(
        one.first_failure.node
        for one in recent
        if one.first_failure is not None and one.first_failure.node not in one.nodes[:1]
    )
    found = {name: f"Slurm lost it under attempt {number}" for name, number in lost.items() if name in present}
    for name, times in first.items():
        if times >= FAILURES and name in present and name not in found:
            found[name] = f"{times} of the last {len(recent)} attempts that failed did so on it first"
    return dict(list(found.items())[:_NAMED])


DETECTOR = Detector(CHECK, find, Part.QUEUE | Part.NODES | Part.ATTEMPTS, HELP, can_do_without=Part.ATTEMPTS)
