"""Do the nodes' clocks agree with the file server's?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "clocks"
HELP = """Do the nodes' clocks agree with the file server's?

1: a node's is off by more than `[watch] clock_seconds`.
"""
#: Nodes that are named in one finding each; with more it is one finding.
_NAMED = 4


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A warning for each node whose clock is off; one for all where they are many."""
    most_s = settings.watch.clock_seconds
    wrong = [one for one in snapshot.clocks if abs(one.off_s) > most_s]
    todo = "tell the cluster's administrators: time limits and logs of that node are wrong"
    if len(wrong) > _NAMED:
        worst = max(wrong, key=lambda one: abs(one.off_s))
        many = f"the clocks of {len(wrong)} of {len(snapshot.clocks)} nodes are off"
        text = f"{many}, {worst.node}'s by {worst.off_s:+.0f} s"
        evidence = tuple(f"{one.node}: {one.off_s:+.0f} s" for one in wrong[:_NAMED])
        if len(wrong) == len(snapshot.clocks):
            todo = "all of them: is it the file server's clock? Tell the cluster's administrators"
        return [Finding(CHECK, Severity.WARNING, text, subject="many", evidence=evidence, todo=todo)]
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"the clock of {one.node} is {abs(one.off_s):.0f} s {'ahead of' if one.off_s > 0 else 'behind'} "
            "the file server's",
            subject=one.node,
            evidence=(
                f"{one.off_s:+.1f} s at {one.at.astimezone().isoformat(timespec='seconds')}; at most {most_s:g} s",
            ),
            todo=todo,
        )
        for one in wrong
    ]


DETECTOR = Detector(CHECK, find, Part.CLOCKS, HELP)
