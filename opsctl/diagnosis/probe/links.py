"""Which links between two nodes are slow by themselves, while both of their ends are not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from opsctl.diagnosis.probe.measures import FEWEST, RATES, SUSPICIOUS_DEVIATIONS, Measure
from opsctl.diagnosis.probe.outliers import deviations, slowness, usual_and_deviation
from opsctl.diagnosis.probe.results import Answer
from trainer.formats.attempt.probe import NETWORK


def slow_links(answers: Sequence[Answer], off: Set[str]) -> Iterator[str]:
    """A sentence for each link that is far behind all links, by both of its ends; none of a node that is `off`.

    No node is to blame for one: a cable, a port or a switch is, and which end's nobody can tell. Where they are
    more than a third of all links they lie between racks, and are told in one sentence.
    """
    at_place = {int(place): one.node for one in answers if (place := one.number(NETWORK, "rank")) is not None}
    for measure in RATES:
        if measure.of == "link":
            yield from _slow(measure, answers, at_place, off)


def _slow(measure: Measure, answers: Sequence[Answer], at_place: dict[int, str], off: Set[str]) -> Iterator[str]:
    links: dict[tuple[str, str], float] = {}
    better = max if measure.more_is_better else min
    for one in answers:
        for place, value in one.numbers.get((measure.part, measure.what), {}).items():
            if place is not None and (other := at_place.get(place)):
                ends = (min(one.node, other), max(one.node, other))
                links[ends] = better(links.get(ends, value), value)
    if measure.slow is None or len(links) < FEWEST:
        return
    usual, deviation = usual_and_deviation(list(links.values()))
    slow_of = {ends: slowness(value, usual, measure.more_is_better) for ends, value in links.items()}
    slow = {ends: by for ends, by in slow_of.items() if by >= measure.slow and off.isdisjoint(ends)}
    far = sorted(ends for ends, by in slow.items() if deviations(by, deviation) >= SUSPICIOUS_DEVIATIONS)

    def words(ends: tuple[str, str]) -> str:
        numbers = f"{links[ends]:.3g} {measure.unit}, where links have {usual:.3g}"
        return f"{measure.words}: {numbers} ({slow_of[ends]:.1f} times slower)"

    if far and 3 * len(slow) > len(links):
        typical = sorted(slow, key=slow.__getitem__)[len(slow) // 2]
        yield f"{len(slow)} of {len(links)} links are slow, as between racks, {words(typical)}"
        return
    for first, second in far:
        yield f"the link between {first} and {second} is slow, {words((first, second))}"
