"""Groups of ranks for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.diagnosis.hangs import summary
from opsctl.diagnosis.hangs.grouping import Group
from opsctl.run.attempts.verdict import StackGroup


class PrintedStacks(Struct, frozen=True, kw_only=True):
    """Where every rank of a live job is."""

    job: Annotated[str, Meta(description="The job as squeue shows it.")]
    ranks: Annotated[int, Meta(description="How many ranks it has.")]
    found: Annotated[int, Meta(description="How many of them could be seen.")]
    misses: Annotated[
        str, Meta(description="The collective in which the others wait for the odd ones; empty if unknown.")
    ]
    flight_recorder: Annotated[
        str, Meta(description="What torch's flight recorder says, a sentence; empty where none runs.")
    ]
    groups: Annotated[tuple[StackGroup, ...], Meta(description="Ranks with equal stacks, the odd ones first.")]


def printed_stacks(job: str, groups: Sequence[Group], ranks: int, flight: str) -> PrintedStacks:
    """All groups."""
    return PrintedStacks(
        job=job,
        ranks=ranks,
        found=sum(len(group.stacks) for group in groups),
        misses=summary.missed(groups),
        flight_recorder=flight,
        groups=tuple(group.recorded() for group in groups),
    )
