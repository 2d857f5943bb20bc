"""A slow link is reported without blame for its ends; the links of a slow node are the node's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.diagnosis.probe.launch import Answer
from opsctl.diagnosis.probe.report import Standing
from opsctl.diagnosis.probe.verdict import Expected, Judgement, judge
from tests.unit.diagnosis.probe.made_answers import answers, names
from trainer.formats.attempt.node_samples import NETWORK

ALL = 16
A, B = 2, 6
BANDWIDTH, LATENCY = (NETWORK, "link_gbs"), (NETWORK, "link_latency_us")


def with_link(found: list[Answer], key: tuple[str, str], first: int, second: int, factor: float) -> list[Answer]:
    """Return the lines of node `first` about its link to `second`, times `factor`."""
    one = found[first]
    values = {**one.numbers[key], second: one.numbers[key][second] * factor}
    return [replace(one, numbers={**one.numbers, key: values}) if at == first else it for at, it in enumerate(found)]


def with_node(found: list[Answer], node: int, factor: float) -> list[Answer]:
    """Return the lines of both ends about every link of a node, times `factor`."""
    said = []
    for at, it in enumerate(found):
        links = {to: value * factor if node in (at, to) else value for to, value in it.numbers[BANDWIDTH].items()}
        said.append(replace(it, numbers={**it.numbers, BANDWIDTH: links}))
    return said


def not_fine(found: Judgement) -> list[str]:
    return [one.node for one in found.nodes if one.standing != Standing.FINE]


@pytest.mark.parametrize(("key", "factor"), [(BANDWIDTH, 0.1), (LATENCY, 100.0)])
def test_a_slow_link_is_named_with_both_ends_and_blames_neither(key: tuple[str, str], factor: float) -> None:
    said = with_link(with_link(answers(ALL), key, A, B, factor), key, B, A, factor)
    found = judge(said, Expected())
    (line,) = found.links
    assert f"{names(ALL)[A]} and {names(ALL)[B]}" in line
    assert not_fine(found) == not_fine(judge(answers(ALL), Expected()))


def test_what_one_end_alone_saw_was_busy_for_a_moment() -> None:
    assert judge(with_link(answers(ALL), BANDWIDTH, A, B, 0.1), Expected()).links == ()


@pytest.mark.parametrize("seed", range(4))
def test_good_links_are_none_and_all_links_of_a_slow_node_are_the_nodes(seed: int) -> None:
    assert judge(answers(52, seed), Expected()).links == ()
    slow = judge(with_node(answers(52, seed), A, 0.3), Expected())
    assert slow.links == () and names(52)[A] in not_fine(slow)


def racks(sizes: tuple[int, ...], between: float = 0.4) -> list[Answer]:
    """Return healthy nodes in racks, whose links to other racks have `between` of the bandwidth."""
    rack = [number for number, size in enumerate(sizes) for _ in range(size)]
    found = answers(len(rack), seed=2)
    for at, one in enumerate(found):
        values = {
            to: value * (1.0 if to is not None and rack[to] == rack[at] else between)
            for to, value in one.numbers[BANDWIDTH].items()
        }
        found[at] = replace(one, numbers={**one.numbers, BANDWIDTH: values})
    return found


@pytest.mark.parametrize("sizes", [(6, 2), (11, 5), (8, 8), (42, 10), (40, 12), (160, 40), (20, 20, 12)])
def test_no_node_of_a_smaller_rack_is_slow_nor_is_each_link_between_racks_told(sizes: tuple[int, ...]) -> None:
    found = judge(racks(sizes), Expected())
    assert [one.node for one in found.nodes if one.standing.rank >= Standing.SLOW.rank] == []
    assert len(found.links) <= 1


def test_a_rack_of_a_third_of_all_nodes_is_fine_and_the_links_between_racks_are_told_in_one_sentence() -> None:
    found = judge(racks((35, 17), between=0.2), Expected())
    assert not [one for one in found.nodes if any(reason.measure == "network.link_gbs" for reason in one.reasons)]
    (line,) = found.links
    assert line.startswith("595 of 1326 links ") and "racks" in line


@pytest.mark.parametrize("count", [3, 4, 8, 16, 52])
def test_a_node_all_of_whose_links_are_slow_is_named_alone(count: int) -> None:
    found = judge(answers(count, numbers={1: {BANDWIDTH: 1.5}}), Expected())
    assert [one.node for one in found.nodes if one.standing == Standing.SLOW] == [names(count)[1]]


def test_of_several_nodes_all_of_whose_links_are_slow_nobody_knows_whether_it_is_their_switch() -> None:
    found = judge(answers(52, numbers={at: {BANDWIDTH: 1.5} for at in (1, 2)}), Expected())
    assert {names(52)[1], names(52)[2]} <= set(not_fine(found))
    assert [one.node for one in found.nodes if one.standing.rank >= Standing.SLOW.rank] == []
