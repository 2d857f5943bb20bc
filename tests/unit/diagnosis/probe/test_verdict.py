"""Verdicts on 52 nodes: the reported nodes, their reasons, and no others."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from opsctl.diagnosis.probe.launch import Answer
from opsctl.diagnosis.probe.report import Standing
from opsctl.diagnosis.probe.verdict import Expected, Judgement, judge
from tests.unit.diagnosis.probe.made_answers import USUAL, answers, names
from trainer.formats.attempt.node_samples import PROGRAM

ALL, PLACE = 52, 16
NAME = names(ALL)[PLACE]


def standings(found: Judgement) -> dict[str, Standing]:
    """Return the standings of nodes that are not fine."""
    return {one.node: one.standing for one in found.nodes if one.standing != Standing.FINE}


def bad(found: Judgement) -> list[str]:
    return [node for node, standing in standings(found).items() if standing == Standing.BAD]


def slow(found: Judgement) -> list[str]:
    return [node for node, standing in standings(found).items() if standing == Standing.SLOW]


@pytest.mark.parametrize("seed", range(8))
def test_nobody_of_52_good_nodes_is_bad_and_hardly_one_suspicious(seed: int) -> None:
    found = judge(answers(ALL, seed), Expected())
    assert bad(found) == slow(found) == [] and len(standings(found)) <= 2 and found.general == ()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("key", "factor"),
    [
        (("products", "fp32_gflops"), 0.7),
        (("memory", "copy_gbs"), 0.55),
        (("network", "link_gbs"), 0.3),
        (("network", "link_latency_us"), 8.0),
    ],
)
def test_one_slow_node_of_52_is_the_only_slow_one_and_is_named_with_both_numbers(
    key: tuple[str, str], factor: float, seed: int
) -> None:
    usual = {("network", "link_gbs"): 11.0, ("network", "link_latency_us"): 30.0, **USUAL}[key]
    found = judge(answers(ALL, seed, numbers={PLACE: {key: factor * usual}}), Expected())
    assert slow(found) == [NAME] and bad(found) == []
    (reason, *_) = next(one for one in found.nodes if one.node == NAME).reasons
    assert reason.measure == ".".join(key) and len(re.findall(r"\d[\d.]*", reason.words)) >= 3


@pytest.mark.parametrize(
    ("measure", "value", "fact"),
    [
        (("products", "wrong"), 1.0, "1 of 4 products"),
        (("products", "sum"), 26_779_639.1 * 1.001, "26806418"),
        (("products", "sum"), math.nan, "nan"),
        (("shm", "wrong_blocks"), 2.0, "2 MiB"),
        (("gpus", "ecc_uncorrected"), 3.0, "3 uncorrected ECC"),
        (("network", "link_wrong"), 5.0, "51 other nodes"),
    ],
)
def test_a_node_that_computes_or_keeps_wrong_is_bad_however_fast(
    measure: tuple[str, str], value: float, fact: str
) -> None:
    found = judge(answers(ALL, numbers={PLACE: {measure: value}}), Expected())
    assert bad(found) == [NAME]
    reason = next(one for one in found.nodes if one.node == NAME).reasons[0]
    assert reason.measure == ".".join(measure) and fact in reason.words


def test_a_node_that_was_lost_is_bad_as_is_one_without_a_word_and_the_others_are_still_judged() -> None:
    planted = {3: {("products", "fp32_gflops"): 900.0}}
    nodes = names(ALL)
    found = judge(
        answers(ALL, numbers=planted, silent=frozenset({PLACE}), lost={nodes[5]: "lost by Slurm"}),
        Expected(),
    )
    assert (bad(found), slow(found)) == ([nodes[5], NAME], [nodes[3]])
    words = {one.node: one.reasons[0].words for one in found.nodes if one.reasons}
    assert "51 of 52" in words[NAME] and words[nodes[5]] == "lost by Slurm"


def test_a_node_that_has_begun_to_answer_is_slow_and_none_is_bad_for_saying_nothing_where_most_did_not_answer() -> None:
    made = answers(4)
    begun = Answer(names(4)[3], late={"run_folder": "its time was up", PROGRAM: "not through"})
    found = judge([*made[:3], begun], Expected())
    assert (bad(found), slow(found)) == ([], names(4)[3:])
    assert bad(judge(answers(4, silent=frozenset({2, 3})), Expected())) == names(4)[2:]
    few = judge(answers(4, silent=frozenset({1, 2, 3})), Expected())
    assert (bad(few), slow(few)) == ([], names(4)[1:])


def test_different_hardware_is_compared_within_its_class_and_a_kind_of_its_own_is_told() -> None:
    older = {place: {"cpu": "Xeon 5118"} for place in range(20)}
    slower = {place: {("products", "fp32_gflops"): 1100.0 + place} for place in range(20)}
    slower[7] = {("products", "fp32_gflops"): 700.0}
    older[51] = {"cpu": "EPYC 7763"}
    found = judge(answers(ALL, texts=older, numbers=slower), Expected())
    assert slow(found) == [names(ALL)[7]]
    (line,) = found.not_seen
    assert line.endswith(f"{names(ALL)[51]} (EPYC 7763)")


def test_what_most_nodes_have_in_common_is_no_nodes_fault() -> None:
    found = judge(answers(8, numbers={place: {("shm", "free_gib"): 0.06} for place in range(6)}), Expected())
    assert standings(found) == {}
    (line,) = found.general
    assert all(fact in line for fact in ("6 of 8 nodes", "0.06 GiB", "/dev/shm"))


def test_two_nodes_are_too_few_to_compare() -> None:
    found = judge(answers(2, numbers={1: {("products", "fp32_gflops"): 800.0}}), Expected())
    assert standings(found) == {}


def test_other_versions_of_what_a_training_needs_are_bad_and_another_kernel_is_suspicious() -> None:
    found = judge(answers(ALL, texts={1: {"torch": "2.12.1"}, 2: {"kernel": "4.18.1"}}), Expected())
    assert standings(found) == {names(ALL)[1]: Standing.BAD, names(ALL)[2]: Standing.SUSPICIOUS}
    words = found.nodes[1].reasons[0].words
    assert all(fact in words for fact in ("torch", "2.12.1", "2.13.0"))


def test_memory_and_gpus_are_held_against_what_slurm_and_the_run_count_on() -> None:
    gpus = {place: {("machine", "gpu_devices"): 7.0 if place == PLACE else 8.0} for place in range(ALL)}
    promised = dict.fromkeys(names(ALL), 190_000)
    promised[names(ALL)[4]] = 384_000
    found = judge(answers(ALL, numbers=gpus), Expected(8, promised))
    assert bad(found) == [names(ALL)[4], NAME]
    words = {one.node: one.reasons[0].words for one in found.nodes if one.reasons}
    assert re.match(r"7 GPUs.*\b8\b", words[NAME])
    assert re.match("192,000 MiB.*384,000", words[names(ALL)[4]])


def test_a_part_that_died_names_the_node_and_one_that_is_not_installed_accuses_nobody() -> None:
    made = answers(6)
    made[2] = replace(made[2], failed={"disk": "its process was ended by SIGBUS"})
    made = [
        replace(one, failed={**one.failed, "memory": "ModuleNotFoundError: No module named 'numpy'"}) for one in made
    ]
    found = judge(made, Expected())
    assert standings(found) == {names(6)[2]: Standing.BAD}
    assert found.general == ("6 of 6 nodes: memory: ModuleNotFoundError: No module named 'numpy'",)


@pytest.mark.parametrize(
    ("part", "standing"),
    [("products", Standing.SLOW), ("run_folder", Standing.SLOW), (PROGRAM, Standing.SLOW), ("gpus", Standing.BAD)],
)
def test_what_was_not_done_in_time_makes_a_node_slow_and_bad_only_where_a_device_hangs(
    part: str, standing: Standing
) -> None:
    made = answers(6)
    made[2] = replace(made[2], late={part: "not done within 12 s"})
    assert standings(judge(made, Expected())) == {names(6)[2]: standing}
    made[0] = replace(made[0], late={"network": "not done within 20 s"})
    assert standings(judge(made, Expected()))[names(6)[0]] == Standing.SLOW


@pytest.mark.parametrize("part", ["run_folder", "shm", "disk"])
def test_a_node_alone_is_only_suspicious_for_a_folder_that_fails(part: str) -> None:
    made = answers(1)
    made[0] = replace(made[0], failed={part: "OSError: [Errno 122] Disk quota exceeded"})
    assert standings(judge(made, Expected())) == {names(1)[0]: Standing.SUSPICIOUS}
    made[0] = replace(made[0], failed={"products": "its process was ended by SIGSEGV"})
    assert standings(judge(made, Expected())) == {names(1)[0]: Standing.BAD}


def test_a_run_folder_that_fails_alike_on_several_nodes_is_nobodys_fault_and_on_one_that_nodes() -> None:
    made = answers(8)
    for place in (2, 5):
        why = f"OSError: [Errno 122] Disk quota exceeded: '/run/.probe-{made[place].node}.x'"
        made[place] = replace(made[place], failed={"run_folder": why})
    made[6] = replace(made[6], failed={"run_folder": "OSError: [Errno 116] Stale file handle"})
    found = judge(made, Expected())
    assert standings(found) == {names(8)[6]: Standing.BAD}
    (general,) = found.general
    assert "2 of 8 nodes" in general and "OSError: [Errno 122] Disk quota exceeded" in general


def test_a_noisy_cluster_accuses_nobody() -> None:
    """Like a local cluster on a busy machine: rates that differ two- and threefold between nodes."""
    noisy = {place: {("products", "fp32_gflops"): rate} for place, rate in enumerate((5, 16, 27, 16, 9, 15, 33, 12))}
    found = judge(answers(8, numbers={key: dict(value) for key, value in noisy.items()}), Expected())
    assert bad(found) == slow(found) == []


@pytest.mark.parametrize(("rate", "accused"), [(1500.0, False), (700.0, True)])
def test_two_of_three_nodes_that_agree_by_chance_make_the_third_slow_only_where_it_is_far_off(
    rate: float, accused: bool
) -> None:
    rates = (2400.0, 2401.0, rate)
    numbers = {place: {("products", "fp32_gflops"): one} for place, one in enumerate(rates)}
    found = judge(answers(3, numbers=numbers), Expected())
    assert (names(3)[2] in slow(found)) == accused


def test_a_node_far_behind_every_other_is_slow_however_much_four_busy_nodes_differ() -> None:
    key = ("products", "fp32_gflops")  # as four nodes of one busy machine gave them
    planted = dict(enumerate({key: rate} for rate in (44.45, 71.29, 3.99, 85.51)))
    found = judge(answers(4, numbers=planted), Expected())
    standings = {one.node: one.standing for one in found.nodes}
    assert standings[names(4)[2]] == Standing.SLOW
    assert [node for node, standing in standings.items() if standing == Standing.SLOW] == [names(4)[2]]
