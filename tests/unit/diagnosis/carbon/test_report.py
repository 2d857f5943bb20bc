from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.diagnosis.carbon.estimate import HOUR_S
from opsctl.diagnosis.carbon.report import CarbonReport, Inputs, report_lines, report_of, short_line
from opsctl.diagnosis.carbon.trackers import Found
from tests.unit.diagnosis.carbon.trackers import ours
from trainer.formats.attempt.carbon import Reading


def report(*readings: Reading, **asked: object) -> CarbonReport:
    return report_of(Found(len(readings), readings), Inputs(**asked))  # type: ignore[arg-type]


def test_the_lines_say_part_by_part_what_it_is_and_how_it_is_known() -> None:
    told = report(ours("n1", "7"), ours("n2", "7"), ours("n1", "8", began_h=2))
    assert [(line.what, line.how) for line in told.lines] == [
        ("GPUs", "estimated"),  # no method on record
        ("CPUs", "measured"),
        ("memory", "estimated"),
    ]
    assert (told.kwh, told.kg) == pytest.approx((6.0, 0.6))
    assert (told.trackers, told.nodes, told.attempts, told.measured_node_hours) == (3, 2, 2, 3.0)
    assert told.g_per_kwh == pytest.approx(100.0)
    assert told.g_per_kwh_from


def test_another_intensity_and_pue_are_reckoned_with_from_the_same_kwh() -> None:
    told = report(ours("n1", "7"), g_per_kwh=57.0, g_per_kwh_from="given", pue=1.2)
    assert told.kwh == pytest.approx(2.4)
    assert told.kg == pytest.approx(2.4 * 0.057)


def test_node_hours_without_a_tracker_are_said_and_weighed_up_only_when_asked() -> None:
    readings = [ours("n1", "7"), ours("n1", "8", began_h=2), ours("n1", "9", began_h=4, kw=(0.5, 0.1, 1.5))]
    told = report(*readings, known_node_s=13 * HOUR_S)
    assert told.kwh == pytest.approx(6.1)
    assert any("10.00 node hours" in one and "--extrapolate" in one for one in told.assumptions)
    more = report(*readings, known_node_s=13 * HOUR_S, extrapolate=True)
    rest = more.lines[-1]
    assert len(more.lines) == len(told.lines) + 1 and rest.how == "estimated"
    assert rest.kwh == pytest.approx(6.1 / 3 * 10)
    assert rest.low_kwh is not None and rest.high_kwh is not None and rest.kwh is not None
    assert rest.low_kwh < rest.kwh < rest.high_kwh
    assert "95 %" in rest.why and "3 attempts" in rest.why
    assert rest.low_kg == pytest.approx(rest.low_kwh / 10)


def test_without_a_tracker_gpu_hours_at_an_assumed_power_are_told_as_assumed() -> None:
    """1,082,990 GPU hours at 400 W are the 433,196 kWh published for the 176B model; at 57 g, its 24.69 t."""
    told = report(
        known_node_s=1_082_990 / 8 * HOUR_S,
        gpus_per_node=8,
        gpu_power_w=400.0,
        g_per_kwh=57.0,
        g_per_kwh_from="given",
    )
    (line,) = told.lines
    assert line.how == "assumed"
    assert told.kwh == pytest.approx(433_196)
    assert told.kg == pytest.approx(24_690, rel=1e-3)
    # A tracker's word counts before an assumed one.
    assert [one.how for one in report(ours("n1", "7"), gpus_per_node=8, gpu_power_w=400.0).lines].count("assumed") == 0


def test_the_screen_has_every_line_its_sum_and_its_assumptions(golden: Callable[[str, str], None]) -> None:
    told = report(ours("n1", "7", 0.5), known_node_s=2 * HOUR_S, extrapolate=True)
    lines = [*report_lines(told), "", short_line(report(ours("n1", "7"))), "", *report_lines(report())]
    golden("carbon/report.txt", "\n".join([*lines, ""]))
