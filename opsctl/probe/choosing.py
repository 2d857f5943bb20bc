"""Which nodes of an allocation a training runs on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from opsctl.probe.report import NodeReport, Standing


def chosen(
    nodes: Sequence[str], wanted: int, reports: Sequence[NodeReport] = (), lost: Collection[str] = ()
) -> list[str]:
    """`wanted` of `nodes`, in Slurm's order, none bad or lost, suspicious ones only for want of others.

    Fewer than wanted where there are not so many. Without anything known the first ones.
    """
    standing = {report.node: report.standing for report in reports}
    usable = [node for node in nodes if node not in lost and standing.get(node) != Standing.BAD]
    best = sorted(usable, key=lambda node: standing.get(node) == Standing.SUSPICIOUS)[:wanted]
    return [node for node in usable if node in best]
