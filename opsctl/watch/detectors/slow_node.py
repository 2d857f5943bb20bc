"""Does one node compute more slowly than the others, so that all wait for it?"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from opsctl.watch.detector import Detector, Settings
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.robust import middle, spread
from opsctl.watch.snapshot import Part, Snapshot
from trainer.formats.node_samples import RankTiming

CHECK = "slow_node"
HELP = """Does one node compute more slowly than the others?

1: in each fifth of the newest 10 seconds, and 50 iterations, a node's ranks took `[watch] slower_percent` longer for
their own forward and backward passes than the ranks of the same pipeline stage on other nodes, and longer than those
differ among each other. Between two or three nodes, where nobody knows which is as it should be, it has to be 25 %.
"""
#: The time that is looked at has so many parts, each of one stretch of iterations at least, and so many seconds.
PARTS, SECONDS = 5, 10.0
#: How much longer a node must take where there are few to compare it with.
FEW_NODES, OF_FEW = 4, 0.25
#: A node has to be so many times farther off than the others are from each other.
NOISE = 5.0
_NAMED = 3


@dataclass(frozen=True)
class SlowNode:
    """A node that all wait for."""

    node: str
    stage: int
    ratio: float  # of its own time to that of the others, the middle of the newest stretches
    own_s: float  # of an iteration
    others_s: float
    others: int  # nodes that it is compared with
    first: int  # iterations that this is taken from
    last: int
    at: datetime | None  # of the newest line

    @property
    def words(self) -> str:
        """With its numbers."""
        stage = f" of stage {self.stage}" if self.stage else ""
        others = f"{self.others_s:.4g} s of the others ({self.others} node{'s' if self.others > 1 else ''})"
        return (
            f"its ranks{stage} compute {self.own_s:.4g} s an iteration, {self.ratio:.2f} times the {others}, "
            f"iterations {self.first} to {self.last}"
        )


#: Of one pipeline stage: the last iteration of a stretch -> node -> its ranks' seconds of an iteration.
_Stretches = dict[int, dict[str, list[float]]]


def slow_nodes(timings: Iterable[RankTiming], slower_percent: float) -> list[SlowNode]:
    """The nodes that have been slow all of the newest time, the slowest first. Pure.

    Compared are nodes within a pipeline stage, for stages differ by design. A node stands for the middle of its ranks
    there, and is held against the middle of the other nodes: one slow node of two would else be half of what is usual.
    """
    newest: dict[tuple[int, int, int], RankTiming] = {}
    for one in timings:
        if one.iterations > 0 and one.own_s > 0.0:
            newest[one.stage, one.iteration, one.rank] = one  # of an iteration that was done twice the later counts
    times: dict[int, _Stretches] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    lasted_s: dict[int, float] = {}
    for (stage, last, _), one in newest.items():
        times[stage][last][one.node].append(one.own_s / one.iterations)
        lasted_s[last] = max(lasted_s.get(last, 0.0), one.step_s)
    at = max((one.at for one in newest.values() if one.at is not None), default=None)
    worst: dict[str, SlowNode] = {}
    for stage, stretches in times.items():
        for slow in _slow_in(stage, stretches, lasted_s, slower_percent, at):
            if slow.node not in worst or slow.ratio > worst[slow.node].ratio:
                worst[slow.node] = slow
    return sorted(worst.values(), key=lambda one: -one.ratio)


def _slow_in(
    stage: int, stretches: _Stretches, lasted_s: dict[int, float], slower_percent: float, at: datetime | None
) -> list[SlowNode]:
    """Those of one stage."""
    nodes = sorted(set().union(*stretches.values()))
    lasts = _newest([last for last in sorted(stretches) if len(stretches[last]) == len(nodes)], lasted_s)
    if len(nodes) < 2 or not lasts:
        return []
    own = {node: [middle(stretches[last][node]) for last in lasts] for node in nodes}
    whole = [sorted(own[node][place] for node in nodes) for place in range(len(lasts))]
    bound = slower_percent / 100.0
    found = []
    for node in nodes:
        others_s = [_middle_without(times, seconds) for times, seconds in zip(whole, own[node], strict=True)]
        ratios = [seconds / other for seconds, other in zip(own[node], others_s, strict=True)]
        # The others' spread is asked for only where it may matter: it costs a sort of all of them.
        if min(middle(part) for part in _parts(ratios)) <= 1.0 + bound:
            continue
        of_others = [[own[other][place] for other in nodes if other != node] for place in range(len(lasts))]
        noise = NOISE * middle(spread(others) / middle(others) for others in of_others)
        least = max(bound, noise, OF_FEW if len(nodes) < FEW_NODES else 0.0)
        if min(middle(part) for part in _parts(ratios)) > 1.0 + least:
            usual = middle(ratios), middle(own[node]), middle(others_s), len(nodes) - 1
            found.append(SlowNode(node, stage, *usual, lasts[0], lasts[-1], at))
    return found


def _middle_without(ascending: Sequence[float], one: float) -> float:
    """The median of all of them but `one`, which is among them, in the time that finding it takes."""
    place, rest = bisect_left(ascending, one), len(ascending) - 1

    def at(index: int) -> float:
        return ascending[index if index < place else index + 1]

    return at(rest // 2) if rest % 2 else at(rest // 2 - 1) + 0.5 * (at(rest // 2) - at(rest // 2 - 1))


def _newest(lasts: Sequence[int], lasted_s: dict[int, float]) -> Sequence[int]:
    """The newest stretches that are PARTS and SECONDS together; none where there are fewer."""
    seconds = 0.0
    for number, last in enumerate(reversed(lasts), start=1):
        seconds += lasted_s[last]
        if number >= PARTS and seconds >= SECONDS:
            return lasts[-number:]
    return ()


def _parts(ratios: Sequence[float]) -> list[Sequence[float]]:
    """PARTS runs of about as many."""
    ends = [len(ratios) * part // PARTS for part in range(PARTS + 1)]
    return [ratios[begin:end] for begin, end in pairwise(ends)]


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A warning for each slow node of the running attempt."""
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"node {slow.node} of the running job is slow: {slow.words}",
            subject=slow.node,
            evidence=(slow.words,),
            todo=f"opsctl nodes {slow.node}; opsctl exclude add {slow.node} --why slow, and opsctl request requeue",
        )
        for slow in slow_nodes(snapshot.timings, settings.watch.slower_percent)[:_NAMED]
    ]


DETECTOR = Detector(CHECK, find, Part.TIMINGS, HELP)
