from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes.judging import judge as judge_nodes
from opsctl.diagnosis.nodes.node_evidence import Policy, read_node_evidence
from opsctl.diagnosis.probe.launch import Heard, sorted_answers
from opsctl.diagnosis.probe.report import ProbeReport, Standing
from opsctl.diagnosis.probe.run_probe import late_together, record_evidence
from opsctl.diagnosis.probe.verdict import Expected, judge
from opsctl.run.config.paths import RunPaths
from tests.unit.diagnosis.probe.made_answers import answers, names
from trainer.formats.attempt.node_samples import BEGAN, NETWORK, PROGRAM, ProbeLine

NODES = [f"x{number}" for number in range(6)]


def heard(begun: list[str], late: list[str]) -> Heard:
    lines = [ProbeLine(node=node, part=NETWORK, what=BEGAN) for node in begun]
    return Heard(lines, late=dict.fromkeys(late, "it was not through after 22 s"))


def test_who_never_began_is_late_and_who_hangs_with_all_others_is_not() -> None:
    assert late_together(heard(NODES[1:], NODES), NODES).keys() == {"x0"}
    assert late_together(heard(NODES, NODES), NODES) == {}
    assert late_together(heard([], NODES), NODES) == {}


def test_a_network_on_which_all_hang_accuses_nobody_and_is_said_not_to_be_tested() -> None:
    made = answers(6)
    late = {NETWORK: "LATE"}
    hanging = [replace(one, ended=one.ended - {NETWORK}, late=late) for one in made]
    found = judge(hanging, Expected())
    assert {one.standing for one in found.nodes} == {Standing.FINE}
    assert any(line.endswith(": LATE") for line in found.not_seen)
    one_alone = judge([hanging[0], *made[1:]], Expected())
    assert [one.node for one in one_alone.nodes if one.standing == Standing.SLOW] == [made[0].node]


def test_a_node_whose_lines_end_in_a_part_has_failed_in_that_part() -> None:
    lines = [ProbeLine(node="x0", part="disk", what=BEGAN)]
    (answer,) = sorted_answers(["x0"], lines, {})
    assert answer.failed.keys() == {"disk"}


def test_a_node_whose_time_was_up_in_a_part_is_late_with_it_and_has_not_failed() -> None:
    lines = [ProbeLine(node="x0", part="disk", what=BEGAN)]
    why = "it was not through after 30 s"
    (answer,) = sorted_answers(["x0"], lines, {}, {"x0": why})
    assert (answer.failed, answer.late) == ({}, {"disk": why, PROGRAM: why})
    (lost,) = sorted_answers(["x0"], lines, {"x0": "Slurm lost it"}, {"x0": why})
    assert (lost.failed, lost.late) == ({"disk": "Slurm lost it"}, {})


NODE = names(8)[2]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path)
    made.state.mkdir(parents=True)
    return made


def recorded(paths: RunPaths, made: list[object]) -> list[tuple[str, str]]:
    found = judge(made, Expected())  # type: ignore[arg-type]
    report = ProbeReport(at=now(), effort="quick", took_s=12.0, nodes=found.nodes)
    assert [one.node for one in report.of(Standing.BAD)] == [NODE]
    record_evidence(paths, report, "1-a")
    return [(one.node, one.words) for one in read_node_evidence(paths)]


@pytest.mark.parametrize("what", ["python", "torch", "opsctl"])
def test_another_version_leaves_a_node_out_of_this_job_and_accuses_its_hardware_of_nothing(
    paths: RunPaths, what: str
) -> None:
    assert recorded(paths, list(answers(8, texts={2: {what: "9.9"}}))) == []


def test_a_run_folder_that_fails_on_one_node_is_no_evidence_against_its_hardware(paths: RunPaths) -> None:
    made = answers(8)
    made[2] = replace(made[2], failed={"run_folder": "OSError: [Errno 122] Disk quota exceeded"})
    assert recorded(paths, list(made)) == []


def test_what_is_wrong_with_the_hardware_too_is_recorded_alone(paths: RunPaths) -> None:
    made = answers(8, numbers={2: {("products", "wrong"): 1.0}}, texts={2: {"torch": "9.9"}})
    ((node, words),) = recorded(paths, list(made))
    assert node == NODE and "1 of 4 products" in words and "9.9" not in words


def test_two_probes_that_a_node_said_nothing_in_are_enough_to_stay_off_it_and_one_is_not(paths: RunPaths) -> None:
    found = judge(answers(8, silent=frozenset({2})), Expected())
    excluded = []
    for attempt, minutes in (("1-a", 60), ("2-a", 0)):
        at = now() - timedelta(minutes=minutes)
        report = ProbeReport(at=at, effort="quick", took_s=12.0, nodes=found.nodes)
        assert report.of(Standing.BAD)
        record_evidence(paths, report, attempt)
        listed = judge_nodes(read_node_evidence(paths), [], now(), names(50), Policy())
        excluded.append([one.node for one in listed])
    assert excluded == [[], [NODE]]


def test_a_node_whose_links_are_slow_is_kept_off_after_two_such_probes_and_not_after_one(paths: RunPaths) -> None:
    found = judge(answers(8, numbers={2: {("network", "link_gbs"): 1.5}}), Expected())
    excluded = []
    for attempt, minutes in (("1-a", 60), ("2-a", 0)):
        at = now() - timedelta(minutes=minutes)
        report = ProbeReport(at=at, effort="quick", took_s=12.0, nodes=found.nodes)
        assert [one.node for one in report.of(Standing.SLOW)] == [NODE]
        record_evidence(paths, report, attempt)
        listed = judge_nodes(read_node_evidence(paths), [], now(), names(50), Policy())
        excluded.append([one.node for one in listed])
    assert excluded == [[], [NODE]]
