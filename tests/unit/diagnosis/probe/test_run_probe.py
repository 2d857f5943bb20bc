"""Who is to blame when nodes do not come through the pass in which they talk to each other."""

from __future__ import annotations

from dataclasses import replace

from opsctl.diagnosis.probe.launch import Heard
from opsctl.diagnosis.probe.report import Standing
from opsctl.diagnosis.probe.results import sorted_answers
from opsctl.diagnosis.probe.run_probe import late_together
from opsctl.diagnosis.probe.verdict import Expected, judge
from tests.unit.diagnosis.probe.made_answers import answers
from trainer.formats.attempt.probe import BEGAN, NETWORK, PROGRAM, ProbeLine

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
