"""`[alerts]` as it counts for a run, and which file says what."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time, timedelta
from pathlib import Path

import msgspec

from opsctl.monitoring.alerts.decide import Rules
from opsctl.run.config.profile import profile, profile_files
from opsctl.run.config.schema import AlertsTable
from opsctl.run.config.toml_file import read_toml
from opsctl.run.state.run_view import RunView
from opsctl.slurm.durations import parse_duration_s


@dataclass(frozen=True)
class AlertSettings:
    """The table, and for each key that is written somewhere the file where it counts from."""

    table: AlertsTable = field(default_factory=AlertsTable)
    said_by: Mapping[str, Path] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        """What decides when something is told."""
        table = self.table
        return Rules(
            remind_after=_duration(table.remind_after),
            remind_most=_duration(table.remind_most),
            escalate_after=_duration(table.escalate_after) if table.escalate_to else None,
            per_hour=table.per_hour,
            quiet=_quiet(table.quiet),
        )


def alert_settings(run: RunView, environment: Mapping[str, str] = os.environ) -> AlertSettings:
    """The run file's over the profiles'. Of a run whose file is broken only the profiles count.

    Raises RunFileError for a wrong profile.
    """
    written = profile(environment).get("alerts", {})
    said_by = {key: path for path in profile_files(environment) for key in read_toml(path).get("alerts", {})}
    if run.loaded is not None:
        own = run.loaded.file.alerts
        written, said_by = {**written, **own}, {**said_by, **dict.fromkeys(own, run.loaded.path)}
    return AlertSettings(msgspec.convert(written, AlertsTable), said_by)


def _duration(text: str) -> timedelta:
    return timedelta(seconds=parse_duration_s(text))


def _quiet(text: str | None) -> tuple[time, time] | None:
    if text is None:
        return None
    begin, _, end = text.partition("-")
    return time.fromisoformat(begin), time.fromisoformat(end)
