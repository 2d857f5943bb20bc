"""The result of a probe: its record, its text, and the choice of nodes by it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.diagnosis.probe.measures import NOT_OF_HARDWARE
from opsctl.slurm.durations import format_duration
from trainer.formats.json_text import Moment

SCHEMA_VERSION = 1


class Standing(StrEnum):
    """The standing of a node, best first. Slow nodes are used only if needed, bad ones never."""

    FINE = "fine"
    SUSPICIOUS = "suspicious"
    SLOW = "slow"
    BAD = "bad"

    @property
    def rank(self) -> int:
        """Return the position in the order; 0 is the best."""
        return _RANKS[self]


_RANKS = {standing: rank for rank, standing in enumerate(Standing)}


class Reason(msgspec.Struct, frozen=True):
    """One reason for a node's standing."""

    standing: Annotated[Standing, Meta(description="`suspicious`, `slow` or `bad`.")]
    measure: Annotated[str, Meta(description="Name of the measure, such as `products.fp32_gflops`.")]
    words: Annotated[str, Meta(description="The finding, with the node's numbers and the others'.")]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one node."""

    node: Annotated[str, Meta(description="Its name.")]
    standing: Annotated[Standing, Meta(description="`fine`, `suspicious`, `slow` or `bad`.")]
    hardware: Annotated[str, Meta(description="Processors and GPUs; only equal nodes are compared.")]
    reasons: Annotated[tuple[Reason, ...], Meta(description="Reasons for the standing, the worst first.")] = ()
    numbers: Annotated[dict[str, float], Meta(description="Measured numbers; the worst GPU's or link's.")] = {}


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a probe."""

    schema_version: Annotated[int, Meta(description="1.")] = SCHEMA_VERSION
    at: Annotated[Moment, Meta(description="Time of the start.")]
    effort: Annotated[str, Meta(description="`quick` or `full`.")]
    took_s: Annotated[float, Meta(description="Duration in seconds.")]
    nodes: Annotated[tuple[NodeReport, ...], Meta(description="The nodes in Slurm's order.")]
    general: Annotated[
        tuple[str, ...], Meta(description="Findings on most nodes alike, which blame none of them.")
    ] = ()
    not_seen: Annotated[tuple[str, ...], Meta(description="Tests that were not possible, and why.")] = ()
    links: Annotated[tuple[str, ...], Meta(description="Slow links between two healthy nodes, in words.")] = ()
    trained_on: Annotated[
        tuple[str, ...], Meta(description="Nodes that the training then used; empty outside of a run's job.")
    ] = ()
    spare: Annotated[tuple[str, ...], Meta(description="Nodes that it left idle.")] = ()

    def of(self, standing: Standing) -> list[NodeReport]:
        """Return the nodes with that standing."""
        return [one for one in self.nodes if one.standing == standing]


_FINE = (Standing.FINE.rank, False)


def chosen(
    nodes: Sequence[str], wanted: int, reports: Sequence[NodeReport] = (), lost: Collection[str] = ()
) -> list[str]:
    """Return `wanted` of `nodes` in Slurm's order: none bad or lost, best standing first, or fewer."""
    best = set(best_first([node for node in nodes if node not in lost], reports)[:wanted])
    return [node for node in nodes if node in best]


def best_first(nodes: Sequence[str], reports: Sequence[NodeReport]) -> list[str]:
    """Return the nodes that are not bad, by standing, then in Slurm's order."""
    # Slow nodes without any numbers come last. Nearly all nodes are fine: only the others are sorted.
    doubts = {report.node: (report.standing.rank, not report.numbers) for report in reports}
    odd = {node: doubt for node, doubt in doubts.items() if doubt > _FINE}
    doubtful = [node for node in nodes if node in odd and odd[node][0] < Standing.BAD.rank]
    return [node for node in nodes if node not in odd] + sorted(doubtful, key=odd.__getitem__)


_NAMED = 4  # nodes that a line names
_WORST_FIRST = (Standing.BAD, Standing.SLOW, Standing.SUSPICIOUS)


def summary(report: ProbeReport) -> str:
    """`probe (quick, 12 s): 51 of 52 nodes are healthy; bad: x07 (matrix products: ...)`."""
    fine = len(report.of(Standing.FINE))
    parts = [f"probe ({report.effort}, {report.took_s:.0f} s): {fine} of {len(report.nodes)} nodes are healthy"]
    for standing in _WORST_FIRST:
        found = report.of(standing)
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            parts.append(f"{standing}: {', '.join(map(_named, found[:_NAMED]))}{more}")
    return "; ".join([*parts, *report.links[:_NAMED], *report.general])


def _named(one: NodeReport) -> str:
    return f"{one.node} ({one.reasons[0].words})" if one.reasons else one.node


def screen(report: ProbeReport) -> Iterator[str]:
    """Yield a line for each reason, link and general finding, then the healthy nodes."""
    from ClusterShell.NodeSet import NodeSet

    for standing in _WORST_FIRST:
        for one in report.of(standing):
            for reason in one.reasons:
                yield f"{reason.standing:<10}  {one.node}: {reason.words}"
    yield from (f"link        {line}" for line in report.links)
    yield from (f"all alike   {line}" for line in report.general)
    yield from (f"not tested  {line}" for line in report.not_seen)
    fine = report.of(Standing.FINE)
    names = f" ({NodeSet.fromlist([one.node for one in fine])})" if fine else ""
    took = format_duration(report.took_s)
    yield f"{len(fine)} of {len(report.nodes)} nodes are healthy{names}, {took}, {report.effort} test"


def against(one: NodeReport) -> str:
    """Return the hardware reasons in one sentence for the record; empty if there are none."""
    return "; ".join(reason.words for reason in of_hardware(one))


def of_hardware(one: NodeReport) -> list[Reason]:
    """Return the reasons for slow or bad that concern the hardware, not the installed software."""
    worse = (reason for reason in one.reasons if reason.standing.rank >= Standing.SLOW.rank)
    return [reason for reason in worse if reason.measure not in NOT_OF_HARDWARE]
