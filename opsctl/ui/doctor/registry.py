"""All checks of the doctor, in the order in which equally good ones are shown."""

from __future__ import annotations

from opsctl.ui.doctor.check import Check
from opsctl.ui.doctor.checks import cluster, environment, keys, people, places, software

CHECKS: tuple[Check, ...] = (
    *people.CHECKS,
    *keys.CHECKS,
    *software.CHECKS,
    *cluster.CHECKS,
    *places.CHECKS,
    *environment.CHECKS,
)
