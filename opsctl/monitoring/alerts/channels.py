"""`[alerts]` of a run: the rules, and the channels, each with a name without a secret and the URL behind it."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.monitoring.alerts.decide import Rules
from opsctl.run.config.profile import profile, profile_files
from opsctl.run.config.schema import AlertsTable
from opsctl.run.config.secret_references import HOOK, OPEN_SCHEMES, is_reference, kind_of, secret_in, written_problem
from opsctl.run.config.secrets import SecretRefused, follow, is_readers_alone, path_of, why_not_the_readers
from opsctl.run.config.toml_file import read_toml
from opsctl.run.state.alert_log import CHANNELS, ESCALATION
from opsctl.run.state.run_view import RunView
from opsctl.slurm.durations import parse_duration_s

#: Options of a URL that have the sender read files, which only the reader's own settings may.
_READING = ("pgp", "wkd", "key", "cert", "attach", "file", "template")


@dataclass(frozen=True)
class AlertSettings:
    """The table, and for each key that is set the file that sets it."""

    table: AlertsTable = field(default_factory=AlertsTable)
    named_in: Mapping[str, Path] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        """Return the rules that decide when a message is made."""
        table = self.table
        return Rules(
            remind_after=_duration(table.remind_after),
            remind_most=_duration(table.remind_most),
            escalate_after=_duration(table.escalate_after) if table.escalate_to else None,
            per_hour=table.per_hour,
            quiet=_quiet(table.quiet),
        )


def alert_settings(run: RunView, environment: Mapping[str, str] = os.environ) -> AlertSettings:
    """Return the run file's table over the profiles'. Of a run whose file is broken only the profiles count.

    Raises RunFileError for a wrong profile.
    """
    written = profile(environment).get("alerts", {})
    named_in = {key: path for path in profile_files(environment) for key in read_toml(path).get("alerts", {})}
    if run.loaded is not None:
        own = run.loaded.file.alerts
        written, named_in = {**written, **own}, {**named_in, **dict.fromkeys(own, run.loaded.path)}
    return AlertSettings(msgspec.convert(written, AlertsTable), named_in)


def _duration(text: str) -> timedelta:
    return timedelta(seconds=parse_duration_s(text))


def _quiet(text: str | None) -> tuple[time, time] | None:
    if text is None:
        return None
    begin, _, end = text.partition("-")
    return time.fromisoformat(begin), time.fromisoformat(end)


@dataclass(frozen=True)
class Channel:
    """One channel of the settings."""

    name: str
    text: str = field(repr=False)  # as written
    named_in: Path
    to: tuple[str, ...]  # keys of [alerts] that name it


@dataclass(frozen=True)
class Target:
    """The destination of a channel."""

    url: str = field(default="", repr=False)
    hook: tuple[str, ...] = field(default=(), repr=False)
    is_open: bool = False  # it was written where others read it, and must have no secret


def channels_of(settings: AlertSettings) -> list[Channel]:
    """Return every channel once, in the order of the settings."""
    found: dict[str, Channel] = {}
    for key in (CHANNELS, ESCALATION):
        named_in = settings.named_in.get(key)
        if named_in is None:
            continue
        for text in getattr(settings.table, key):
            name = channel_name(text, named_in)
            known = found.get(name)
            found[name] = Channel(name, text, named_in, (*known.to, key) if known else (key,))
    return list(found.values())


def chosen_channels(settings: AlertSettings, part: str | None) -> list[Channel]:
    """Return the channels with `part` in their names, or all without one. Raises OpsctlError if there are none."""
    known = channels_of(settings)
    wanted = [one for one in known if part is None or part in one.name]
    if not known:
        raise OpsctlError(
            'there is no channel yet: write channels = ["mailto://SERVER?from=ADDRESS&to=ADDRESS"] or '
            'channels = ["file:FILE"], with a Slack or other address in FILE, under [alerts] of your profile '
            "(~/.config/opsctl/profile.toml) or of the run file"
        )
    if not wanted:
        raise OpsctlError(f"no such channel; those that there are: {', '.join(one.name for one in known)}")
    return wanted


def channel_name(text: str, named_in: Path) -> str:
    """Return a name without a secret, the same while the settings name the same place."""
    kind = kind_of(text)
    if kind == "file":
        return f"file:{os.path.normpath(path_of(text.partition(':')[2].strip(), named_in))}"
    if kind == "env":
        return f"env:{text.partition(':')[2].strip()} of {account_name()}"
    if kind in ("command", HOOK):
        return f"{kind}:{Path(_words(text)[0]).name} {_digest(text)} of {account_name()}"
    if secret_in(text) is None:
        return f"{kind}://{urlsplit(text).hostname or ''} {_digest(text)}"
    return f"{kind} {_digest(text)} of {account_name()}"


def target_of(channel: Channel, environment: Mapping[str, str]) -> Target:
    """Return where it leads to now. Raises SecretRefused, which names no secret."""
    kind = kind_of(channel.text)
    if kind == HOOK:
        problem = why_not_the_readers(channel.named_in)
        if problem:
            raise SecretRefused(problem)
        return Target(hook=tuple(_words(channel.text)))
    if is_reference(channel.text):
        return Target(url=follow(channel.text, channel.named_in, environment))
    is_open = not is_readers_alone(channel.named_in)
    problem = written_problem(channel.text, may_have_secret=not is_open)
    if problem:
        raise SecretRefused(f"{channel.named_in}: {problem}")
    if why_not_the_readers(channel.named_in) and not _is_harmless(channel.text):
        raise SecretRefused(
            f"{channel.named_in} can be changed by other users, who could read your files through this URL"
        )
    return Target(url=channel.text, is_open=is_open)


def _is_harmless(url: str) -> bool:
    plain, before = url, ""
    while plain != before:  # senders read options quoted, and behind a fragment's #, as well
        plain, before = unquote(plain), plain
    keys = [pair.partition("=")[0].lower() for pair in re.split("[?#&;]", plain)[1:]]
    return kind_of(url) in OPEN_SCHEMES and not any(word in key for key in keys for word in _READING)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text.partition(":")[2]) or [""]
    except ValueError:
        return [text.partition(":")[2].split()[0]]


def _digest(text: str) -> str:
    """Return a short digest. It is slow to compute, so that no password can be found by trying."""
    return hashlib.pbkdf2_hmac("sha256", text.encode(errors="replace"), b"opsctl alert channel", 50_000).hex()[:6]
