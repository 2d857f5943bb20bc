"""The energy and carbon of a planned training, with the interval of the assumptions."""

from __future__ import annotations

import pytest

from opsctl.run.config.schema import CarbonTable
from opsctl.run.planning.costs import carbon_section
from opsctl.run.planning.plan import PlannedCarbon, PlannedTime


def planned(time: PlannedTime, g_per_kwh: float | None = 57.0) -> tuple[PlannedCarbon, str]:
    section = carbon_section(CarbonTable(gpu_power_w=400, gpu_power_off_percent=10), g_per_kwh, time)
    assert section is not None and isinstance(section.values, PlannedCarbon)
    return section.values, "\n".join(text for _, text in section.rows)


def test_its_middle_is_the_published_one_and_its_ends_are_those_of_the_power() -> None:
    """1,082,990 GPU hours at 400 W are the 433,196 kWh published for the 176B model; at 57 g, its 24.69 t."""
    told, text = planned(PlannedTime(gpu_hours_at_expected_seconds=1_082_990))
    assert (told.kwh, told.kg) == pytest.approx((433_196, 24_692), rel=1e-4)
    assert (told.low_kwh, told.high_kwh) == pytest.approx((433_196 * 0.9, 433_196 * 1.1))
    assert "400 W" in text and "360 to 440 W" in text and "1,082,990 GPU hours" in text
    assert "433,196 kWh (389,876 to 476,516)" in text


def test_where_two_expectations_differ_the_ends_are_the_fewest_hours_at_least_power_and_the_most_at_most() -> None:
    told, text = planned(PlannedTime(gpu_hours_at_expected_seconds=3000, gpu_hours_at_expected_tflops=1000), None)
    assert (told.low_kwh, told.kwh, told.high_kwh) == pytest.approx((360, 800, 1320))
    assert (told.low_kg, told.kg, told.high_kg) == (None, None, None)
    assert "1,000 to 3,000 GPU hours" in text and "CO2e" not in text


def test_without_hours_or_power_nothing_is_told() -> None:
    assert carbon_section(CarbonTable(gpu_power_w=400), 57.0, PlannedTime()) is None
    assert carbon_section(CarbonTable(), 57.0, PlannedTime(gpu_hours_at_expected_seconds=1)) is None


def test_the_sites_pue_multiplies_the_electricity() -> None:
    hours = PlannedTime(gpu_hours_at_expected_seconds=1000)
    section = carbon_section(CarbonTable(gpu_power_w=400, pue=1.5), None, hours)
    assert section is not None and isinstance(section.values, PlannedCarbon)
    assert section.values.kwh == pytest.approx(1000 * 0.4 * 1.5)
