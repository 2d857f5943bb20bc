"""What counts against a node, how much, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from opsctl.run.attempts.verdict import Cause

#: What `opsctl probe`, `watch` and samples call what they saw; every other kind of evidence is a Cause.
PROBE, SLOW, SAMPLE = "probe", "slow", "sample"


@dataclass(frozen=True)
class Weight:
    """How one kind of evidence counts: with a confidence of 1, and when half of that is forgotten."""

    weight: float
    half_life: timedelta
    is_hardware: bool = False  # one that is sure enough excludes at once


_DAY = timedelta(days=1)
#: Kinds that speak against a node. All others are a user's, a run's or nobody's fault, or of a release that this one
#: does not know: they count nothing.
WEIGHTS: dict[str, Weight] = {
    Cause.GPU_ECC: Weight(1.0, 14 * _DAY, is_hardware=True),
    Cause.GPU_LOST: Weight(1.0, 14 * _DAY, is_hardware=True),
    Cause.GPU_ERROR: Weight(0.8, 7 * _DAY, is_hardware=True),
    Cause.NODE_FAILURE: Weight(1.0, 7 * _DAY, is_hardware=True),
    PROBE: Weight(1.0, 3 * _DAY, is_hardware=True),
    SLOW: Weight(0.6, 3 * _DAY),
    Cause.NETWORK: Weight(0.5, 2 * _DAY),
    Cause.NCCL: Weight(0.4, 2 * _DAY),
    Cause.HANG: Weight(0.3, 2 * _DAY),
    Cause.SHM: Weight(0.3, _DAY),
    Cause.HOST_OOM: Weight(0.3, _DAY),
    SAMPLE: Weight(0.3, _DAY),
}
#: Kinds that a program, a user or another node can be the reason of as well: alone they exclude no node.
AMBIGUOUS = frozenset({Cause.NCCL, Cause.HANG, Cause.SHM, Cause.HOST_OOM, SAMPLE})


@dataclass(frozen=True)
class Policy:
    """By what a list is judged."""

    most_excluded_percent: float = 10.0  # of the partition's nodes, persons' own exclusions counted in
    needed: int = 1  # nodes that the run cannot do without
    least_score: float = 1.0  # from which on a node is excluded
    sure: float = 0.8  # confidence from which on one word about hardware is enough
    bad_ends: int = 2  # in a row, by the hardware of the same node
    bad_ends_within: timedelta = 14 * _DAY
    first: timedelta = 2 * _DAY  # the first exclusion of a node; each next one is twice as long
    longest: timedelta = 32 * _DAY
    remembered: timedelta = 90 * _DAY  # for so long an exclusion that is over makes the next one longer

    def length(self, times: int) -> timedelta:
        """How long an exclusion lasts that is a node's `times`-th, from 1."""
        return min(self.first * (1 << min(max(times, 1) - 1, 10)), self.longest)


#: What is dated later than this from now is passed over: no clock is that far ahead, and it would never be forgiven.
AHEAD = _DAY
#: How long a person's exclusion lasts that says no end.
PERSONS = 30 * _DAY
