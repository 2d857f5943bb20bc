"""What of a probe is held against a node for longer than its job."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes.judging import judge as judge_nodes
from opsctl.diagnosis.nodes.node_evidence import read_node_evidence
from opsctl.diagnosis.nodes.policy import Policy
from opsctl.diagnosis.probe.evidence import put_on_record
from opsctl.diagnosis.probe.report import ProbeReport, Standing
from opsctl.diagnosis.probe.verdict import Expected, judge
from opsctl.run.config.paths import RunPaths
from tests.unit.diagnosis.probe.made_answers import answers, names

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
    put_on_record(paths, report, "1-a")
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
        put_on_record(paths, report, attempt)
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
        put_on_record(paths, report, attempt)
        listed = judge_nodes(read_node_evidence(paths), [], now(), names(50), Policy())
        excluded.append([one.node for one in listed])
    assert excluded == [[], [NODE]]
