"""What a training will take in electricity and come to in CO2e: its GPU hours times what is assumed. Pure."""

from __future__ import annotations

from opsctl.planning.plan import PlannedCarbon, PlannedTime
from opsctl.planning.section import Section, amount, whole
from opsctl.runs.schema import CarbonTable


def carbon_section(carbon: CarbonTable, g_per_kwh: float | None, time: PlannedTime) -> Section | None:
    """kWh and kg CO2e from the fewest to the most GPU hours that are expected.

    g_per_kwh: of the site's electricity, None where nobody says. None: nobody says what a GPU takes, or how long it is.
    """
    hours = [one for one in (time.gpu_hours_at_expected_tflops, time.gpu_hours_at_expected_seconds) if one is not None]
    if carbon.gpu_power_w is None or not hours:
        return None
    low, high = (edge * carbon.gpu_power_w / 1000 * carbon.pue for edge in (min(hours), max(hours)))
    kg = None if g_per_kwh is None else (low * g_per_kwh / 1000, high * g_per_kwh / 1000)
    rows = [
        ("assumed", f"{carbon.gpu_power_w:g} W a GPU with its share of the node, PUE {carbon.pue:g}"),
        ("electricity", f"{_range(low, high)} kWh"),
    ]
    if kg is not None and g_per_kwh is not None:
        rows.append(("CO2e", f"{_range(*kg)} kg, at {g_per_kwh:,.4g} g a kWh"))
    return Section(
        "carbon",
        "Electricity and CO2e of the whole training",
        PlannedCarbon(
            gpu_power_w=carbon.gpu_power_w,
            pue=carbon.pue,
            g_per_kwh=g_per_kwh,
            low_kwh=low,
            high_kwh=high,
            low_kg=None if kg is None else kg[0],
            high_kg=None if kg is None else kg[1],
        ),
        tuple(rows),
    )


def _range(low: float, high: float) -> str:
    ends = [whole(one) if one >= 100 else amount(one) for one in (low, high)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)
