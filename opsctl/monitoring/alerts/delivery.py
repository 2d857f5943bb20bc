"""Sending what waits: a process for each channel, all at once, and nobody waits for a slow one longer than agreed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from opsctl.core.files.state_files import make_folder
from opsctl.core.files.trusted import open_file
from opsctl.core.process import Overdue, run_program
from opsctl.monitoring.alerts.channels import Channel, Target, target_of
from opsctl.monitoring.alerts.send import GRACE_S
from opsctl.monitoring.alerts.send_request import Report, Task
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.secret_references import HOOK, kind_of
from opsctl.run.config.secrets import SecretRefused
from opsctl.run.state import alert_log
from opsctl.run.state.alert_log import Event, Message
from opsctl.run.state.alerts import opened
from opsctl.run.state.identity import read_run_id
from trainer.formats.json_text import plain

#: How long one pass sends, and one try may take.
BUDGET_S, TRY_S = 60.0, 30.0
#: What a sender's environment has of ours: nothing that could be a secret.
_KEPT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)


@dataclass(frozen=True)
class Drained:
    """What one channel did in this pass."""

    channel: str
    reports: tuple[Report, ...] = ()
    problem: str = ""  # why nothing could be tried


@dataclass(frozen=True)
class Limits:
    """How long to take."""

    budget_s: float = BUDGET_S
    try_s: float = TRY_S


def drain(
    paths: RunPaths,
    name: str,
    channels: Sequence[Channel],
    environment: Mapping[str, str],
    now: datetime,
    *,
    is_patient: bool = True,
    limits: Limits | None = None,
) -> list[Drained]:
    """Send what the channels have yet to take. is_patient: leave alone what failed a moment ago.

    Raises OpsctlError where others keep the lock, OSError where the log cannot be read or written.
    """
    if not channels:
        return []
    with opened(paths, "send alerts"):
        lines = alert_log.events(paths)
        for channel in channels:
            joined = alert_log.joins(lines, channel.name, channel.to, now)
            if joined is not None:
                alert_log.append_event(paths, joined)
        lines = alert_log.events(paths)
    make_folder(paths.output, paths.alert_senders)
    for channel in channels:  # now, as a full disk may take no new file when there is something to send
        with contextlib.suppress(OSError):
            os.close(open_file(paths.output, _lock(paths, channel.name), os.O_RDWR | os.O_CREAT))
    with ThreadPoolExecutor(len(channels)) as pool:
        calls = [
            pool.submit(_drain_one, paths, name, channel, environment, lines, now, is_patient, limits or Limits())
            for channel in channels
        ]
        return [call.result() for call in calls]


def send_now(
    paths: RunPaths,
    name: str,
    channels: Sequence[Channel],
    message: Message,
    environment: Mapping[str, str],
    limits: Limits | None = None,
) -> list[Drained]:
    """Send one message to all of these, whatever waits there; nothing is tried again."""

    def one(channel: Channel) -> Drained:
        try:
            target = target_of(channel, environment)
        except SecretRefused as refused:
            return Drained(channel.name, problem=str(refused))
        task = _task(paths, name, channel.name, target, limits or Limits())
        task.messages = [message]
        return Drained(channel.name, tuple(_run(task, environment)))

    if not channels:
        return []
    with ThreadPoolExecutor(len(channels)) as pool:
        return list(pool.map(one, channels))


def mail_to(
    paths: RunPaths,
    name: str,
    channels: Sequence[Channel],
    address: str,
    message: Message,
    environment: Mapping[str, str],
    limits: Limits | None = None,
) -> Drained:
    """Send one message to `address` alone, as the first of the channels that is mail does to its own recipients."""
    problem = 'no channel of [alerts] is mail: channels = ["mailto://..."]'
    for channel in channels:
        try:
            target = target_of(channel, environment)
        except SecretRefused as refused:
            problem = str(refused)
            continue
        if kind_of(target.url) in ("mailto", "mailtos"):
            addressed = replace(target, url=_addressed(target.url, address))
            task = _task(paths, name, channel.name, addressed, limits or Limits())
            task.messages = [message]
            return Drained(channel.name, tuple(_run(task, environment)))
    return Drained("mail", problem=problem)


def _addressed(url: str, address: str) -> str:
    """The mail URL with another recipient: servers, sender and password stay."""
    parts = urlsplit(url)
    kept = [(key, value) for key, value in parse_qsl(parts.query) if key.lower() not in ("to", "cc", "bcc", "reply")]
    return urlunsplit((parts.scheme, parts.netloc, "", urlencode([*kept, ("to", address)]), ""))


def heartbeat(url: str, paths: RunPaths, environment: Mapping[str, str], limits: Limits | None = None) -> Report:
    """Ask for the URL once."""
    task = _task(paths, "", "heartbeat", Target(url=url), limits or Limits())
    task.is_heartbeat = True
    reports = _run(task, environment)
    return reports[-1] if reports else Report(result="failed", why="no answer")


def _drain_one(
    paths: RunPaths,
    name: str,
    channel: Channel,
    environment: Mapping[str, str],
    lines: Sequence[Event],
    now: datetime,
    is_patient: bool,
    limits: Limits,
) -> Drained:
    queue = alert_log.queue_of(lines, channel.name)
    is_cheap = kind_of(channel.text) not in ("command", HOOK)
    is_wanted = bool(queue.owed or queue.unfinished) and (not is_patient or queue.is_due(now))
    if not is_wanted and not is_cheap:
        return Drained(channel.name)
    try:
        target = target_of(channel, environment)
    except SecretRefused as refused:
        if not queue.detail or queue.is_due(now):
            why = str(refused)
            alert_log.append_event(paths, Event(event="failed", at=now, channel=channel.name, why=why))
        return Drained(channel.name, problem=str(refused))
    if queue.is_unresolved:
        alert_log.append_event(paths, Event(event="ready", at=now, channel=channel.name))
        is_wanted = bool(queue.owed or queue.unfinished)
    if not is_wanted:
        return Drained(channel.name)
    return Drained(channel.name, tuple(_run(_task(paths, name, channel.name, target, limits), environment)))


def _task(paths: RunPaths, name: str, channel: str, target: Target, limits: Limits) -> Task:
    return Task(
        output=str(paths.output),
        run=name,
        run_id=read_run_id(paths) or "",
        channel=channel,
        url=target.url,
        hook=list(target.hook),
        is_open=target.is_open,
        lock=str(_lock(paths, channel)),
        budget_s=limits.budget_s,
        try_s=limits.try_s,
    )


def _lock(paths: RunPaths, channel: str) -> Path:
    """The file whose lock the channel's sender holds."""
    return paths.alert_senders / hashlib.sha256(channel.encode(errors="replace")).hexdigest()[:16]


def _run(task: Task, environment: Mapping[str, str]) -> list[Report]:
    """A sender's reports, as far as it came. It ends itself; where it does not, it is ended."""
    kept = {key: environment[key] for key in _KEPT if key in environment}
    command = [sys.executable, "-P", "-m", "opsctl.monitoring.alerts.send"]
    limit_s = task.budget_s + task.try_s + 2 * GRACE_S
    began = time.monotonic()
    try:
        ended = run_program(command, kept, limit_s, msgspec.json.encode(plain(task)), folder="/")
        out, how = ended.out, f"ended with {ended.code}" if ended.code else ""
    except Overdue as late:
        out, how = late.out, "was killed"
    reports = []
    for line in out.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            reports.append(msgspec.json.decode(line, type=Report))
    if how:
        reports.append(Report(result="unknown", why=f"the sender {how} after {time.monotonic() - began:.0f} s"))
    return reports
