"""A probe in words: a line for the training log, a screen for people, sentences for the record. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.diagnosis.probe.measures import NOT_OF_HARDWARE
from opsctl.diagnosis.probe.report import NodeReport, ProbeReport, Reason, Standing
from opsctl.slurm.durations import format_duration

_NAMED = 4  # nodes that a line names
_WORST_FIRST = (Standing.BAD, Standing.SLOW, Standing.SUSPICIOUS)


def summary(report: ProbeReport) -> str:
    """`probe (quick, 12 s): 51 of 52 nodes are fine; bad: x07 (matrix products: ...)`."""
    fine = len(report.of(Standing.FINE))
    said = [f"probe ({report.effort}, {report.took_s:.0f} s): {fine} of {len(report.nodes)} nodes are fine"]
    for standing in _WORST_FIRST:
        found = report.of(standing)
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            said.append(f"{standing}: {', '.join(map(_named, found[:_NAMED]))}{more}")
    return "; ".join([*said, *report.links[:_NAMED], *report.general])


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
