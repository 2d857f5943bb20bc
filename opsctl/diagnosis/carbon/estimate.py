"""Estimate unmeasured energy and carbon: time without a tracker, CO2e of a kWh."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.run.config.schema import CarbonTable
from trainer.formats.distribution import install_command

HOUR_S = 3600.0
#: Student's t, two-sided 95 %, by degrees of freedom from 1 on.
_T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Unit:
    """A unit of measurement: node-seconds and kWh."""

    node_s: float
    kwh: float


@dataclass(frozen=True)
class Rest:
    """The kWh of unmeasured node time; low and high are None if only one unit was measured."""

    kwh: float
    low_kwh: float | None = None
    high_kwh: float | None = None


def rest_like(units: Sequence[Unit], rest_node_s: float) -> Rest | None:
    """Estimate node time without a tracker at the mean measured power; None if nothing was measured.

    The interval is a 95 % prediction interval of a ratio: the scatter of the units, both in the mean and in the
    unmeasured units, which are assumed to be as long as the measured ones.
    """
    measured_s = sum(unit.node_s for unit in units)
    if measured_s <= 0:
        return None
    power = sum(unit.kwh for unit in units) / measured_s
    kwh = power * rest_node_s
    count = len(units)
    if count < 2 or not rest_node_s:
        return Rest(kwh, kwh, kwh) if not rest_node_s else Rest(kwh)
    scatter = sum((unit.kwh - power * unit.node_s) ** 2 for unit in units) / (count - 1)
    rest_units = rest_node_s * count / measured_s
    error = math.sqrt(scatter * (rest_units**2 / count + rest_units))
    reach = t_95(count - 1) * error
    return Rest(kwh, max(0.0, kwh - reach), kwh + reach)


def t_95(freedom: int) -> float:
    """Return Student's t for a two-sided 95 % interval; above 30 degrees of freedom to three digits."""
    return _T_95[freedom - 1] if freedom <= len(_T_95) else 1.96 + 2.4 / freedom


_MIXES = Path("data") / "private_infra" / "global_energy_mix.json"


def of_country(country: str) -> float:
    """Return a country's g/kWh from codecarbon's table. Raises UsageError, or OpsctlError without codecarbon."""
    found = importlib.util.find_spec("codecarbon")
    if found is None or found.origin is None:
        raise OpsctlError(
            f"the CO2e of electricity in {country} is in codecarbon's table, but codecarbon is not installed. Install: "
            f"{install_command('carbon')}, or give --intensity"
        )
    try:
        mixes: dict[str, dict[str, Any]] = json.loads((Path(found.origin).parent / _MIXES).read_text())
    except (OSError, ValueError):
        raise OpsctlError("the installed codecarbon has no table of countries: give --intensity") from None
    known = mixes.get(country, {}).get("carbon_intensity")
    if known is None:
        raise UsageError(f"codecarbon knows no country {country}: give --intensity, or three letters such as FRA")
    return float(known)


def of_table(carbon: CarbonTable) -> float | None:
    """Return the value of `[carbon]` for a kWh; None without one, or for a country without codecarbon."""
    if carbon.intensity_g_per_kwh is not None or carbon.country is None:
        return carbon.intensity_g_per_kwh
    try:
        return of_country(carbon.country)
    except OpsctlError:
        return None
