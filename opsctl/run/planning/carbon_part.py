"""What a training will take in electricity and come to in CO2e: its GPU hours times what is assumed. Pure."""

from __future__ import annotations

from opsctl.run.config.schema import CarbonTable
from opsctl.run.planning.plan import PlannedCarbon, PlannedTime
from opsctl.run.planning.section import Section, amount, whole


def carbon_section(carbon: CarbonTable, g_per_kwh: float | None, time: PlannedTime) -> Section | None:
    """kWh and kg CO2e, with the interval of what is assumed: of a GPU's power, and the fewest to the most GPU hours.

    g_per_kwh: of the site's electricity, None where nobody says. None: nobody says what a GPU takes, or how long it is.
    """
    hours = [one for one in (time.gpu_hours_at_expected_tflops, time.gpu_hours_at_expected_seconds) if one is not None]
    if carbon.gpu_power_w is None or not hours:
        return None
    off = carbon.gpu_power_off_percent / 100
    low_w, high_w = carbon.gpu_power_w * (1 - off), carbon.gpu_power_w * (1 + off)
    cases = ((min(hours), low_w), (sum(hours) / len(hours), carbon.gpu_power_w), (max(hours), high_w))
    low, kwh, high = (many * power_w / 1000 * carbon.pue for many, power_w in cases)
    low_kg, kg, high_kg = (None if g_per_kwh is None else one * g_per_kwh / 1000 for one in (low, kwh, high))
    rows = [
        (
            "assumed",
            f"{carbon.gpu_power_w:g} W a GPU with its share of the node, {low_w:g} to {high_w:g} W in the interval "
            f"([carbon] gpu_power_off_percent), PUE {carbon.pue:g}; {_hours(min(hours), max(hours))}",
        ),
        ("electricity", f"{_amount(kwh)} kWh ({_amount(low)} to {_amount(high)})"),
    ]
    if kg is not None and low_kg is not None and high_kg is not None:
        rows.append(
            ("CO2e", f"{_amount(kg)} kg ({_amount(low_kg)} to {_amount(high_kg)}), at {g_per_kwh:,.4g} g a kWh")
        )
    return Section(
        "carbon",
        "Electricity and CO2e of the whole training",
        PlannedCarbon(
            gpu_power_w=carbon.gpu_power_w,
            gpu_power_low_w=low_w,
            gpu_power_high_w=high_w,
            pue=carbon.pue,
            g_per_kwh=g_per_kwh,
            kwh=kwh,
            low_kwh=low,
            high_kwh=high,
            kg=kg,
            low_kg=low_kg,
            high_kg=high_kg,
        ),
        tuple(rows),
    )


def _hours(fewest: float, most: float) -> str:
    between = _amount(most) if fewest == most else f"{_amount(fewest)} to {_amount(most)}"
    return f"{between} GPU hours are expected"


def _amount(value: float) -> str:
    return whole(value) if value >= 100 else amount(value)
