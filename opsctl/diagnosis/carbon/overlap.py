"""What several trackers have seen of the same nodes, counted once. Pure.

A tracker knows only how much, from when to when; within that its power is taken as even. Where several have measured
the same thing at the same time their mean counts, so that the sum depends neither on how many ranks of a node had a
tracker, nor on the order of files, nor on how a training was cut into attempts.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: What is measured of a whole node, whoever has what of it; other keys are parts of it that do not overlap.
WHOLE = ""


@dataclass(frozen=True)
class Span:
    """An even power of one part of a node over a stretch of time."""

    node: str
    part: str  # cpu, ram, gpu, unsplit
    key: str  # whose, or which device; WHOLE: all of it
    began_s: float
    ended_s: float
    kwh: float


def counted_once(spans: Iterable[Span]) -> dict[str, float]:
    """kWh of each part over all nodes and times."""
    of_place: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        of_place[span.node, span.part].append(span)
    sums: dict[str, float] = defaultdict(float)
    for (_, part), there in sorted(of_place.items()):
        sums[part] += _of_one_place(there)
    return dict(sums)


def _of_one_place(spans: Sequence[Span]) -> float:
    """kWh of one part of one node. Stretches without length are nobody's power, and stand for themselves."""
    moments = [span for span in spans if span.ended_s <= span.began_s]
    lasting = [span for span in spans if span.ended_s > span.began_s]
    edges = sorted({edge for span in lasting for edge in (span.began_s, span.ended_s)})
    begins: dict[float, list[Span]] = defaultdict(list)
    for span in lasting:
        begins[span.began_s].append(span)
    total, active = max((span.kwh for span in moments), default=0.0), list[Span]()
    for began, ended in itertools.pairwise(edges):
        active = [span for span in active if span.ended_s > began] + begins[began]
        total += _kw(active) * (ended - began)
    return total


def _kw(active: Sequence[Span]) -> float:
    """kWh a second at one moment: of whole nodes' trackers the mean, or the sum over its parts where that is more."""
    by_key: dict[str, list[float]] = defaultdict(list)
    for span in active:
        by_key[span.key].append(span.kwh / (span.ended_s - span.began_s))
    means = {key: sum(powers) / len(powers) for key, powers in by_key.items()}
    whole = means.pop(WHOLE, 0.0)
    return max(whole, sum(means[key] for key in sorted(means)))


def covered_s(stretches: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of the stretches is."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(stretches):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total
