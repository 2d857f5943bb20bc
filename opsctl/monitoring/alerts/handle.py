"""What the desk does with the findings of one look at one run: remember, tell, send, and say that all is well."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.monitoring.alerts.channels import Channel, channels_of
from opsctl.monitoring.alerts.decide import decide
from opsctl.monitoring.alerts.delivery import Drained, Limits, drain, heartbeat
from opsctl.monitoring.alerts.settings import AlertSettings, alert_settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.secret_references import is_reference, written_problem
from opsctl.run.config.secrets import SecretRefused, follow, is_readers_alone
from opsctl.run.state import alert_log, alerts
from opsctl.run.state.alert_log import Event
from opsctl.run.state.identity import place_of
from opsctl.run.state.run_view import RunView

#: The heartbeat's name among the channels: where it fails, that is found as it is of any.
HEARTBEAT = "heartbeat"


@dataclass(frozen=True)
class Told:
    """What came of one look."""

    made: int = 0  # messages
    sent: int = 0  # of those and of earlier ones, counted on each channel
    lines: tuple[str, ...] = ()  # for the person, each without a secret


def tell(
    run: RunView,
    findings: Sequence[Finding],
    looked_at: Collection[str],
    now: datetime,
    is_whole: bool = False,
    environment: Mapping[str, str] = os.environ,
    *,
    is_patient: bool = True,
    limits: Limits | None = None,
) -> Told:
    """Remember what was found, make messages of what is news, and send what waits.

    looked_at: names of the checks that ran. is_whole: they were all; the heartbeat's URL is asked for where all is
    well. is_patient: a channel that failed a moment ago is left alone. Raises OpsctlError where what is remembered can
    be neither read nor written; a channel that fails is a line.
    """
    paths = run.paths
    place = place_of(paths)
    if place.is_another_runs:
        return Told(lines=(f"nothing is told: {paths.output} is {place.describe()}",))
    settings = alert_settings(run, environment)
    channels = channels_of(settings)
    lines: list[str] = []
    try:
        if not findings and not paths.alerts.exists() and not paths.alert_log.exists():
            made = 0  # nothing was ever told, and nothing is to be
        else:
            made = _remember(paths, findings, looked_at, now, settings, lines)
        drained = drain(paths, run.table.name, channels, environment, now, is_patient=is_patient, limits=limits)
        lines += _said(drained)
        waiting = _waiting(paths, channels)
        if waiting:
            lines.append(waiting)
        if is_whole and settings.table.heartbeat and _is_well(paths, findings, channels):
            lines += _beat(paths, settings, environment, now, limits)
    except OSError as error:
        raise OpsctlError(f"alerts: {file_problem(error, paths.state)}") from None
    sent = sum(report.result == "sent" for one in drained for report in one.reports)
    return Told(made, sent, tuple(lines))


def _remember(
    paths: RunPaths,
    findings: Sequence[Finding],
    looked_at: Collection[str],
    now: datetime,
    settings: AlertSettings,
    lines: list[str],
) -> int:
    with alerts.opened(paths, "remember findings") as memory:
        if memory.problem:
            lines.append(memory.problem)
            memory.problem = ""
        after, messages = decide(memory.memory, findings, looked_at, now, settings.rules)
        if messages or after != memory.memory:
            memory.write(after, messages)
        if memory.problem:
            lines.append(memory.problem)
        return len(messages)


def _said(drained: Sequence[Drained]) -> list[str]:
    """What went wrong, a line for each channel."""
    lines = []
    for one in drained:
        if one.problem:
            lines.append(f"alert channel {one.channel}: {one.problem}")
        for report in one.reports:
            if report.result in ("failed", "refused", "unknown", "disk"):
                word = {"unknown": "nobody knows whether it arrived", "disk": "not sent"}.get(
                    report.result, report.result
                )
                lines.append(f"alert channel {one.channel}: {word}: {report.why}")
    return lines


def _waiting(paths: RunPaths, channels: Sequence[Channel]) -> str:
    """How much waits where nobody here can send; empty where that is nothing."""
    if channels:
        return ""
    lines = alert_log.events(paths)
    settled = {line.id for line in lines if line.event in ("sent", "dropped")}
    waiting = [one for one in alert_log.messages(lines) if one.id not in settled and one.kind != "test"]
    if not waiting:
        return ""
    return f"{len(waiting)} messages wait for somebody with [alerts] channels: opsctl alerts list"


def _is_well(paths: RunPaths, findings: Sequence[Finding], channels: Sequence[Channel]) -> bool:
    """Whether nothing is critical, everything could be seen, and whoever would be told can be."""
    if any(one.severity in (Severity.CRITICAL, Severity.UNKNOWN) for one in findings):
        return False
    lines = alert_log.events(paths)
    queues = [alert_log.queue_of(lines, channel.name) for channel in channels]
    return not any(queue.failures or queue.owed for queue in queues)


def _beat(
    paths: RunPaths, settings: AlertSettings, environment: Mapping[str, str], now: datetime, limits: Limits | None
) -> list[str]:
    """Ask for the heartbeat's URL; on record when it begins to fail, and when it works again."""
    named_in, text = settings.said_by["heartbeat"], settings.table.heartbeat or ""
    try:
        url = _heartbeat_url(text, named_in, environment)
        report = heartbeat(url, paths, environment, limits)
        why = "" if report.result == "sent" else report.why
    except SecretRefused as refused:
        why = str(refused)
    is_failing = bool(alert_log.queue_of(alert_log.events(paths), HEARTBEAT).failures)
    if why or is_failing:
        with alerts.opened(paths, "note the heartbeat") as _:
            joined = alert_log.joins(alert_log.events(paths), HEARTBEAT, (), now)
            if joined is not None:
                alert_log.append_event(paths, joined)
            name = "failed" if why else "ready"
            alert_log.append_event(paths, Event(event=name, at=now, channel=HEARTBEAT, why=why))
    return [f"alert heartbeat: {why}"] if why else []


def _heartbeat_url(text: str, named_in: Path, environment: Mapping[str, str]) -> str:
    if is_reference(text):
        url = follow(text, named_in, environment)
    else:
        problem = written_problem(text, may_have_secret=is_readers_alone(named_in))
        if problem:
            raise SecretRefused(f"{named_in}: {problem}")
        url = text
    if not url.startswith(("http://", "https://")):
        raise SecretRefused("the heartbeat is no http:// or https:// URL")
    return url
