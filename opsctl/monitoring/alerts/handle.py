"""Process the findings of one run: remember them, make messages, send what waits, request the heartbeat."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.timestamps import iso
from opsctl.monitoring.alerts.channels import AlertSettings, Channel, alert_settings, channels_of
from opsctl.monitoring.alerts.decide import decide
from opsctl.monitoring.alerts.delivery import Drained, Limits, drain, heartbeat, join
from opsctl.monitoring.finding import Finding, Severity
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.secret_references import is_reference, written_problem
from opsctl.run.config.secrets import SecretRefused, follow, is_readers_alone
from opsctl.run.state import alert_log, alerts
from opsctl.run.state.alert_log import Event
from opsctl.run.state.group_folder import explained_disk_errors
from opsctl.run.state.identity import place_of
from opsctl.run.state.run_view import RunView

#: The heartbeat's name among the channels: its failures are found as those of any channel.
HEARTBEAT = "heartbeat"
_WORDS = {
    "failed": "failed",
    "refused": "refused",
    "unknown": "unknown whether it arrived",
    "disk": "not sent",
}


@dataclass(frozen=True)
class Notified:
    """The result for one run."""

    made: int = 0  # messages
    sent: int = 0  # of those and of earlier ones, counted on each channel
    lines: tuple[str, ...] = ()  # problems for the user, each without a secret


def notify(
    run: RunView,
    findings: Sequence[Finding],
    looked_at: Collection[str],
    now: datetime,
    is_whole: bool = False,
    environment: Mapping[str, str] = os.environ,
    *,
    limits: Limits | None = None,
) -> Notified:
    """Remember what was found, make messages of what is new, and send what waits.

    looked_at: names of the checks that ran. is_whole: they were all; the heartbeat's URL is requested where all is
    healthy. Raises OpsctlError where the memory can be neither read nor written; a channel that fails is a line.
    """
    paths = run.paths
    place = place_of(paths)
    if place.is_another_runs:
        return Notified(lines=(f"no alert is sent: {paths.output} is {place.describe()}",))
    settings = alert_settings(run, environment)
    channels = channels_of(settings)
    made, lines = 0, list[str]()
    try:
        if findings or paths.alerts.exists() or paths.alert_log.exists():
            made = _remember(paths, findings, looked_at, now, settings, lines)
        drained = drain(paths, run.table.name, channels, environment, now, limits)
        lines += _problems(drained)
        waiting = 0 if channels else _waiting(paths)
        if waiting:
            lines.append(f"{waiting} unsent messages wait for a user with [alerts] channels: opsctl alerts list")
        if is_whole and settings.table.heartbeat and _is_healthy(paths, findings, channels, now):
            lines += _request_heartbeat(paths, settings, environment, now, limits)
    except OSError as error:
        raise OpsctlError(f"alerts: {file_problem(error, paths.state)}") from None
    sent = sum(report.result == "sent" for one in drained for report in one.reports)
    return Notified(made, sent, tuple(lines))


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


def _problems(drained: Sequence[Drained]) -> list[str]:
    return [
        f"alert channel {one.channel}: {text}"
        for one in drained
        for text in (
            *([one.problem] if one.problem else []),
            *(f"{_WORDS[report.result]}: {report.why}" for report in one.reports if report.result in _WORDS),
        )
    ]


def _waiting(paths: RunPaths) -> int:
    """Return how many messages no channel has taken."""
    lines = alert_log.events(paths)
    settled = {line.id for line in lines if line.event in ("sent", "dropped")}
    return sum(one.id not in settled and one.kind != "test" for one in alert_log.messages(lines))


def _is_healthy(paths: RunPaths, findings: Sequence[Finding], channels: Sequence[Channel], now: datetime) -> bool:
    """Return True if nothing is critical, everything could be seen, and every channel takes messages."""
    if any(one.severity in (Severity.CRITICAL, Severity.UNKNOWN) for one in findings):
        return False
    names = {channel.name for channel in channels}
    seen = [one for one in alert_log.channels_seen(alert_log.events(paths), now) if one.name in names]
    return not any(one.failing_since or one.waiting or one.dropped for one in seen)


def _request_heartbeat(
    paths: RunPaths, settings: AlertSettings, environment: Mapping[str, str], now: datetime, limits: Limits | None
) -> list[str]:
    """Request the heartbeat's URL; record when it begins to fail, and when it works again."""
    try:
        why = heartbeat(_heartbeat_url(settings, environment), paths, environment, limits)
    except SecretRefused as refused:
        why = str(refused)
    is_failing = bool(alert_log.queue_of(alert_log.events(paths), HEARTBEAT).failures)
    if why or is_failing:
        with alerts.opened(paths, "record the heartbeat"):
            join(paths, HEARTBEAT, (), now)
            name = "failed" if why else "ready"
            alert_log.append_event(paths, Event(event=name, at=now, channel=HEARTBEAT, why=why))
    return [f"alert heartbeat: {why}"] if why else []


def _heartbeat_url(settings: AlertSettings, environment: Mapping[str, str]) -> str:
    named_in, url = settings.named_in[HEARTBEAT], settings.table.heartbeat or ""
    if is_reference(url):
        url = follow(url, named_in, environment)
    elif problem := written_problem(url, may_have_secret=is_readers_alone(named_in)):
        raise SecretRefused(f"{named_in}: {problem}")
    if not url.startswith(("http://", "https://")):
        raise SecretRefused("the heartbeat is no http:// or https:// URL")
    return url


@dataclass(frozen=True)
class Audience:
    """The channels of one of several runs that find the same, and the keys of its open alerts."""

    channels: tuple[str, ...] = ()
    open_keys: Collection[str] = ()

    def follows(self, check: str) -> bool:
        """Return whether an alert of the check is open."""
        return any(key.partition(":")[0].removesuffix("?") == check for key in self.open_keys)


def audience_of(run: RunView, environment: Mapping[str, str] = os.environ) -> Audience:
    """Return the run's; `notify` reports what cannot be read of it."""
    channels: tuple[str, ...] = ()
    keys: Collection[str] = ()
    with contextlib.suppress(OpsctlError):
        channels = alert_settings(run, environment).table.channels
    with contextlib.suppress(OSError):
        keys = frozenset(alerts.open_alerts(run.paths))
    return Audience(channels, keys)


def reported_once(
    found: Sequence[Sequence[Finding]], audiences: Sequence[Audience], shared: Collection[str]
) -> list[list[Finding]]:
    """Return the findings that each run is to report: of the `shared` checks only one run of those with equal channels.

    A run that has reported something of such a check continues with it, for only there it is known when it ends; else
    the first one begins.
    """
    first: dict[tuple[tuple[str, ...], str], int] = {}
    for place, audience in enumerate(audiences):
        for check in shared:
            if audience.follows(check):
                first.setdefault((audience.channels, check), place)
    for place, (findings, audience) in enumerate(zip(found, audiences, strict=True)):
        for one in findings:
            first.setdefault((audience.channels, one.check), place)
    return [
        [
            one
            for one in findings
            if one.check not in shared or first[audience.channels, one.check] == place or audience.follows(one.check)
        ]
        for place, (findings, audience) in enumerate(zip(found, audiences, strict=True))
    ]


def acknowledge(paths: RunPaths, keys: Sequence[str], why: str, now: datetime, dry_run: bool) -> str:
    """Acknowledge open alerts by key or check, all without keys; return a line about them. Raises OpsctlError."""
    if dry_run:
        return f"would acknowledge {', '.join(alerts.meant(keys, alerts.open_alerts(paths))) or 'nothing'}"
    with explained_disk_errors(paths, "nothing was acknowledged"):
        done = alerts.acknowledge(paths, keys, why, now)
    return f"{account_name()} works on {', '.join(done)}" if done else "no open alerts"


def silence_until(paths: RunPaths, until: datetime, why: str, now: datetime, dry_run: bool) -> str:
    """Send no messages until then; return a line about it and about the silence before. Raises OpsctlError."""
    with explained_disk_errors(paths, "nothing was silenced"):
        was = alerts.silence_of(paths, now) if dry_run else alerts.silence(paths, until, why, now)
    before = f", not until {iso(was.until)} as {was.by} had set" if was is not None and was.until > now else ""
    return f"{'would be silent' if dry_run else 'silent'} until {iso(until)}{before}; opsctl alerts unsilence ends it"


def end_silence(paths: RunPaths, now: datetime, dry_run: bool) -> str:
    """End the silence; return a line about it. Raises OpsctlError."""
    with explained_disk_errors(paths, "the silence continues"):
        if alerts.silence_of(paths, now) is None:
            return "nothing was silent"
        if dry_run:
            return "would end the silence"
        alerts.silence(paths, None, "", now)
    return "the silence is ended"
