"""Which nodes of an allocation a training runs on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from opsctl.diagnosis.probe.report import NodeReport, Standing

_FINE = (Standing.FINE.rank, False)


def chosen(
    nodes: Sequence[str], wanted: int, reports: Sequence[NodeReport] = (), lost: Collection[str] = ()
) -> list[str]:
    """`wanted` of `nodes`, in Slurm's order, none bad or lost, those of a worse standing only for want of better ones.

    Fewer than wanted where there are not so many. Without anything known the first ones.
    """
    best = set(best_first([node for node in nodes if node not in lost], reports)[:wanted])
    return [node for node in nodes if node in best]


def best_first(nodes: Sequence[str], reports: Sequence[NodeReport]) -> list[str]:
    """Those of `nodes` that are not bad, by their standing; nodes that are alike in it in Slurm's order."""
    # Of slow ones those come last that said nothing at all. Nearly all are fine: only the others are sorted.
    doubts = {report.node: (report.standing.rank, not report.numbers) for report in reports}
    odd = {node: doubt for node, doubt in doubts.items() if doubt > _FINE}
    doubtful = [node for node in nodes if node in odd and odd[node][0] < Standing.BAD.rank]
    return [node for node in nodes if node not in odd] + sorted(doubtful, key=odd.__getitem__)
