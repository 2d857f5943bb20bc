"""Sending of messages: a process for each channel, all at once, so that a slow channel delays no other."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from opsctl.core.files.state_files import make_folder
from opsctl.core.files.trusted import open_file
from opsctl.core.process import Overdue, run_program
from opsctl.monitoring.alerts.channels import Channel, Target, target_of
from opsctl.monitoring.alerts.send import Report, Task
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.secret_references import HOOK, kind_of
from opsctl.run.config.secrets import SecretRefused
from opsctl.run.state import alert_log
from opsctl.run.state.alert_log import Event, Message
from opsctl.run.state.alerts import opened
from opsctl.run.state.identity import read_run_id
from trainer.formats.json_text import plain

#: Variables of our environment that a sender gets: none that could be a secret.
_KEPT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)
#: Seconds for a sender to start and to end beyond its own limits.
_GRACE_S = 10.0
_NO_ANSWER = "no answer within"


@dataclass(frozen=True)
class Drained:
    """The results of one channel."""

    channel: str
    reports: tuple[Report, ...] = ()
    problem: str = ""  # why nothing could be tried


@dataclass(frozen=True)
class Limits:
    """The time limits of sending on one channel: no try begins after `budget_s`."""

    budget_s: float = 60.0
    try_s: float = 30.0


def drain(
    paths: RunPaths,
    name: str,
    channels: Sequence[Channel],
    environment: Mapping[str, str],
    now: datetime,
    limits: Limits | None = None,
) -> list[Drained]:
    """Send what the channels have yet to take, but leave alone a channel that failed a moment ago.

    Raises OpsctlError where another process keeps the lock, OSError where the log cannot be read or written.
    """
    if not channels:
        return []
    with opened(paths, "send alerts"):
        for channel in channels:
            join(paths, channel.name, channel.to, now)
        lines = alert_log.events(paths)
    make_folder(paths.output, paths.alert_senders)
    for channel in channels:  # now, as a full disk may take no new file when there is something to send
        with contextlib.suppress(OSError):
            os.close(open_file(paths.output, _lock(paths, channel.name), os.O_RDWR | os.O_CREAT))

    def one(channel: Channel) -> Drained:
        queue = alert_log.queue_of(lines, channel.name)
        is_wanted = bool(queue.owed or queue.unfinished) and queue.is_due(now)
        if not is_wanted and kind_of(channel.text) in ("command", HOOK):  # these cost a program
            return Drained(channel.name)
        try:
            target = target_of(channel, environment)
        except SecretRefused as refused:
            if not queue.detail or queue.is_due(now):
                event = Event(event="failed", at=now, channel=channel.name, why=str(refused))
                alert_log.append_event(paths, event)
            return Drained(channel.name, problem=str(refused))
        if queue.is_unresolved:
            alert_log.append_event(paths, Event(event="ready", at=now, channel=channel.name))
            is_wanted = bool(queue.owed or queue.unfinished)
        if not is_wanted:
            return Drained(channel.name)
        reports = _run(_task(paths, name, channel.name, target, limits), environment)
        if reports and reports[-1].why.startswith(_NO_ANSWER):  # it ended before it could record that
            for lost in alert_log.queue_of(alert_log.events(paths), channel.name).unfinished:
                event = Event(event="unknown", at=now, id=lost, channel=channel.name, why=reports[-1].why)
                alert_log.append_event(paths, event)
        return Drained(channel.name, reports)

    return _all(one, channels)


def join(paths: RunPaths, channel: str, to: Collection[str], now: datetime) -> None:
    """Record that settings name this channel, where that is not on record. Raises OSError."""
    joined = alert_log.joins(alert_log.events(paths), channel, to, now)
    if joined is not None:
        alert_log.append_event(paths, joined)


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
            task = _task(paths, name, channel.name, target_of(channel, environment), limits)
        except SecretRefused as refused:
            return Drained(channel.name, problem=str(refused))
        task.messages = [message]
        return Drained(channel.name, _run(task, environment))

    return _all(one, channels)


def heartbeat(url: str, paths: RunPaths, environment: Mapping[str, str], limits: Limits | None = None) -> str:
    """Request the URL once, and return why that failed."""
    task = _task(paths, "", "heartbeat", Target(url=url), limits)
    task.is_heartbeat = True
    reports = _run(task, environment)
    return "no answer" if not reports else "" if reports[-1].result == "sent" else reports[-1].why


def _all(one: Callable[[Channel], Drained], channels: Sequence[Channel]) -> list[Drained]:
    if not channels:
        return []
    with ThreadPoolExecutor(len(channels)) as pool:
        return list(pool.map(one, channels))


def _task(paths: RunPaths, name: str, channel: str, target: Target, limits: Limits | None) -> Task:
    limits = limits or Limits()
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
    """Return the file whose lock the channel's sender holds."""
    return paths.alert_senders / hashlib.sha256(channel.encode(errors="replace")).hexdigest()[:16]


def _run(task: Task, environment: Mapping[str, str]) -> tuple[Report, ...]:
    """Return a sender's reports, as far as it came; it is killed if it does not end itself."""
    kept = {key: environment[key] for key in _KEPT if key in environment}
    command = [sys.executable, "-P", "-m", "opsctl.monitoring.alerts.send"]
    began = time.monotonic()
    try:
        stdin = msgspec.json.encode(plain(task))
        ended = run_program(command, kept, task.budget_s + task.try_s + _GRACE_S, stdin, folder="/")
        out, how = ended.out, f"the sender ended with {ended.code}" if ended.code else ""
        if ended.code == -signal.SIGALRM:
            how = f"{_NO_ANSWER} {task.try_s:.0f} s"
    except Overdue as late:
        out, how = late.out, f"the sender was killed after {time.monotonic() - began:.0f} s"
    reports = [msgspec.json.decode(line, type=Report) for line in out.splitlines() if line.endswith(b"}")]
    return (*reports, Report(result="unknown", why=how)) if how else tuple(reports)
