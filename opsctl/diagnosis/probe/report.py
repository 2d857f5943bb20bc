"""The result of a probe: the record, its text, and the choice of nodes by it. Pure."""

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
    """The standing of a node, best first. A slow node is used only for want of others, a bad one never."""

    FINE = "fine"
    SUSPICIOUS = "suspicious"
    SLOW = "slow"
    BAD = "bad"

    @property
    def rank(self) -> int:
        """0 for the best."""
        return _RANKS[self]


_RANKS = {standing: rank for rank, standing in enumerate(Standing)}


class Reason(msgspec.Struct, frozen=True):
    """One thing that speaks against a node."""

    standing: Annotated[Standing, Meta(description="`suspicious`, `slow` or `bad`.")]
    measure: Annotated[str, Meta(description="What was measured: `products.fp32_gflops`.")]
    words: Annotated[str, Meta(description="What was found, with its numbers and those of the others.")]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    node: Annotated[str, Meta(description="Its name.")]
    standing: Annotated[Standing, Meta(description="`fine`, `suspicious`, `slow` or `bad`.")]
    hardware: Annotated[str, Meta(description="Its processors and GPUs; nodes are compared with those of the same.")]
    reasons: Annotated[tuple[Reason, ...], Meta(description="What speaks against it, the worst first.")] = ()
    numbers: Annotated[
        dict[str, float], Meta(description="What was measured; of GPUs and links the slowest, or the most errors.")
    ] = {}


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole probe."""

    schema_version: Annotated[int, Meta(description="1.")] = SCHEMA_VERSION
    at: Annotated[Moment, Meta(description="When it began.")]
    effort: Annotated[str, Meta(description="`quick` or `full`.")]
    took_s: Annotated[float, Meta(description="How long it took, seconds.")]
    nodes: Annotated[tuple[NodeReport, ...], Meta(description="The nodes in Slurm's order.")]
    general: Annotated[
        tuple[str, ...], Meta(description="What speaks against most nodes alike and so against none of them.")
    ] = ()
    not_seen: Annotated[tuple[str, ...], Meta(description="What could not be tested at all, and why.")] = ()
    links: Annotated[
        tuple[str, ...], Meta(description="Links between two nodes that are slow while neither node is, in words.")
    ] = ()
    trained_on: Annotated[
        tuple[str, ...], Meta(description="The nodes that the training then ran on; empty outside of a run's job.")
    ] = ()
    spare: Annotated[tuple[str, ...], Meta(description="Those that it left idle.")] = ()

    def of(self, standing: Standing) -> list[NodeReport]:
        """The nodes of which that is to be thought."""
        return [one for one in self.nodes if one.standing == standing]


_FINE = (Standing.FINE.rank, False)


def chosen(
    nodes: Sequence[str], wanted: int, reports: Sequence[NodeReport] = (), lost: Collection[str] = ()
) -> list[str]:
    """Return `wanted` of `nodes` in Slurm's order: none bad or lost, best standing first, or fewer."""
    best = set(best_first([node for node in nodes if node not in lost], reports)[:wanted])
    return [node for node in nodes if node in best]


def best_first(nodes: Sequence[str], reports: Sequence[NodeReport]) -> list[str]:
    """Those of `nodes` that are not bad, by their standing; nodes that are alike in it in Slurm's order."""
    # Of slow ones those come last that said nothing at all. Nearly all are fine: only the others are sorted.
    doubts = {report.node: (report.standing.rank, not report.numbers) for report in reports}
    odd = {node: doubt for node, doubt in doubts.items() if doubt > _FINE}
    doubtful = [node for node in nodes if node in odd and odd[node][0] < Standing.BAD.rank]
    return [node for node in nodes if node not in odd] + sorted(doubtful, key=odd.__getitem__)


_NAMED = 4  # nodes that a line names
_WORST_FIRST = (Standing.BAD, Standing.SLOW, Standing.SUSPICIOUS)


def summary(report: ProbeReport) -> str:
    """`probe (quick, 12 s): 51 of 52 nodes are fine; bad: x07 (matrix products: ...)`."""
    fine = len(report.of(Standing.FINE))
    parts = [f"probe ({report.effort}, {report.took_s:.0f} s): {fine} of {len(report.nodes)} nodes are fine"]
    for standing in _WORST_FIRST:
        found = report.of(standing)
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            parts.append(f"{standing}: {', '.join(map(_named, found[:_NAMED]))}{more}")
    return "; ".join([*parts, *report.links[:_NAMED], *report.general])


def _named(one: NodeReport) -> str:
    return f"{one.node} ({one.reasons[0].words})" if one.reasons else one.node


def screen(report: ProbeReport) -> Iterator[str]:
    """Everything that speaks against a node, then what the fine ones came to."""
    for standing in _WORST_FIRST:
        for one in report.of(standing):
            for reason in one.reasons:
                yield f"{reason.standing:<10}  {one.node}: {reason.words}"
    yield from (f"link        {line}" for line in report.links)
    yield from (f"all alike   {line}" for line in report.general)
    yield from (f"not tested  {line}" for line in report.not_seen)
    fine = report.of(Standing.FINE)
    yield f"{len(fine)} of {len(report.nodes)} nodes are fine, {format_duration(report.took_s)}, {report.effort}"


def against(one: NodeReport) -> str:
    """All that is bad or slow about a node's hardware, in a sentence for the record; empty for nothing of it."""
    return "; ".join(reason.words for reason in of_hardware(one))


def of_hardware(one: NodeReport) -> list[Reason]:
    """What makes it bad or slow and is not of what is installed on it."""
    worse = (reason for reason in one.reasons if reason.standing.rank >= Standing.SLOW.rank)
    return [reason for reason in worse if reason.measure not in NOT_OF_HARDWARE]
