"""What a kWh of electricity comes to, in g of CO2e: given, or a country's as codecarbon has it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.run.config.schema import CarbonTable
from trainer.formats.distribution import install_command

_MIXES = Path("data") / "private_infra" / "global_energy_mix.json"


def of_country(country: str) -> float:
    """The country's g/kWh from codecarbon's own table, which is read without loading it.

    Raises UsageError for a country that it does not have, OpsctlError where codecarbon is not installed.
    """
    found = importlib.util.find_spec("codecarbon")
    if found is None or found.origin is None:
        raise OpsctlError(
            f"what electricity in {country} comes to is in codecarbon's table, which is not installed here: "
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
    """What `[carbon]` says of a kWh; None where it says nothing, or names a country and codecarbon is not here."""
    if carbon.intensity_g_per_kwh is not None or carbon.country is None:
        return carbon.intensity_g_per_kwh
    try:
        return of_country(carbon.country)
    except OpsctlError:
        return None
