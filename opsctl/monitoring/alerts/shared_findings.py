"""What is found about the desk itself is the same in every run that is looked at, and is told by one of them alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from opsctl.core.errors import OpsctlError
from opsctl.monitoring.alerts.settings import alert_settings
from opsctl.monitoring.finding import Finding
from opsctl.run.state.alerts import open_alerts
from opsctl.run.state.run_view import RunView


@dataclass(frozen=True)
class Ear:
    """A run, as one of several that find the same."""

    channels: tuple[str, ...] = ()  # whom it tells
    open_keys: Collection[str] = ()  # what it has told, or is about to, and has not ended


def ear_of(run: RunView, environment: Mapping[str, str] = os.environ) -> Ear:
    """The run's; what cannot be read of it is said where it is told."""
    channels: tuple[str, ...] = ()
    keys: Collection[str] = ()
    with contextlib.suppress(OpsctlError):
        channels = alert_settings(run, environment).table.channels
    with contextlib.suppress(OSError):
        keys = frozenset(open_alerts(run.paths))
    return Ear(channels, keys)


def told_once(found: Sequence[Sequence[Finding]], ears: Sequence[Ear], of_desk: Collection[str]) -> list[list[Finding]]:
    """What each run is to tell: of the checks `of_desk` only where no other run tells the same channels.

    A run that has told something of such a check goes on with it, for only there it is known when it ends; else the
    first one begins.
    """
    first: dict[tuple[tuple[str, ...], str], int] = {}
    for place, ear in enumerate(ears):
        for check in of_desk:
            if _follows(ear, check):
                first.setdefault((ear.channels, check), place)
    for place, (findings, ear) in enumerate(zip(found, ears, strict=True)):
        for one in findings:
            first.setdefault((ear.channels, one.check), place)
    return [
        [
            one
            for one in findings
            if one.check not in of_desk or first[ear.channels, one.check] == place or _follows(ear, one.check)
        ]
        for place, (findings, ear) in enumerate(zip(found, ears, strict=True))
    ]


def _follows(ear: Ear, check: str) -> bool:
    return any(key.partition(":")[0].removesuffix("?") == check for key in ear.open_keys)
