"""A run with settings of its own, looked at as a cron job looks at it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.core.timestamps import now
from opsctl.monitoring.alerts.delivery import Limits
from opsctl.monitoring.alerts.handle import Notified, notify
from opsctl.monitoring.finding import Finding, Severity
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import alert_log
from opsctl.run.state.alert_log import Event
from opsctl.run.state.run_view import RunView, view
from tests.tiny_run import write_run

CHECKS = ("cron", "disk")


@dataclass
class Desk:
    """Looks at a run at moments of the test's choosing."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    began: datetime = field(default_factory=now)

    @classmethod
    def at(cls, folder: Path, **alerts_table: object) -> Desk:
        """With a profile of the person's own that says this of [alerts]."""
        write_run(folder)
        (folder / "output").mkdir(mode=0o700)
        desk = cls(folder, {"HOME": str(folder), "PATH": os.environ["PATH"]})
        desk.settle(**alerts_table)
        return desk

    def settle(self, **alerts_table: object) -> None:
        """Write the profile again."""
        profile = self.folder / ".config" / "opsctl" / "profile.toml"
        profile.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{key} = {_toml(value)}" for key, value in alerts_table.items()]
        profile.touch(mode=0o600)
        profile.write_text("\n".join(["[alerts]", *lines, ""]))

    @property
    def run(self) -> RunView:
        return view(str(self.folder))

    @property
    def paths(self) -> RunPaths:
        return self.run.paths

    def look(self, minute: float, *found: Finding, is_whole: bool = False, try_s: float = 60.0) -> Notified:
        """One pass, `minute` minutes after the beginning."""
        at = self.began + timedelta(minutes=minute)
        limits = Limits(budget_s=600, try_s=try_s)
        return notify(self.run, found, CHECKS, at, is_whole, self.environment, limits=limits)

    @property
    def log(self) -> list[Event]:
        return alert_log.events(self.paths)

    def results(self, channel: str = "") -> list[tuple[str, str]]:
        """(event, key of the message) of every try."""
        keys = {one.id: ",".join(one.keys) for one in alert_log.messages(self.log)}
        return [
            (line.event, keys.get(line.id, ""))
            for line in self.log
            if line.event in (*alert_log.RESULTS, "dropped", "ready") and channel in line.channel
        ]


def critical(check: str, subject: str = "", text: str = "") -> Finding:
    return Finding(check, Severity.CRITICAL, text or f"{' '.join([check, *subject.split()])} is dead", subject=subject)


def warning(check: str, subject: str = "") -> Finding:
    return Finding(check, Severity.WARNING, f"{' '.join([check, *subject.split()])} is not well", subject=subject)


def _toml(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    if isinstance(value, Mapping):
        raise TypeError(value)
    if isinstance(value, str):
        return "'" + value + "'"
    return str(value)
