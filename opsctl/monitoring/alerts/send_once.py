"""One message to one channel, once: through apprise, or to a program of the reader's own."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from opsctl.core.output import printable
from opsctl.core.process import ProgramProblem, run_named_program
from opsctl.monitoring.alerts.send_request import Task
from opsctl.monitoring.alerts.wire import Wire, listen
from opsctl.run.state.alert_log import Message
from trainer.formats.json_text import json_line

#: Longer bodies are cut: services refuse them.
_LONGEST_BODY = 8000
_KINDS = {"critical": "failure", "warning": "warning", "unknown": "warning", "ok": "success"}


class TimedOut(BaseException):
    """The time of one try is up. Not an Exception: no plug-in is to pass over it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a try."""

    result: str  # "sent", "failed": it did not arrive; "refused": it never will; "unknown"; "disk": nothing was tried
    why: str = ""
    retry_after_s: float | None = None


class HookMessage(msgspec.Struct, kw_only=True):
    """What a program of the reader's own is handed on stdin, as one line of JSON."""

    schema_version: int = 1
    run: str
    message: Message


def try_once(task: Task, message: Message, parts: frozenset[str], on_part: Callable[[str], None]) -> Outcome:
    """Send it. parts: digests of the recipients that have it already; `on_part` is called for each new one."""
    if task.hook:
        return _to_program(task, message)
    return _through_apprise(task, message, parts, on_part)


def load_senders() -> None:
    """Load apprise with all its plug-ins, some 0.3 s of work."""
    from apprise import manager_plugins

    plugins: Any = manager_plugins.NotificationManager
    plugins().load_modules()


def ask_heartbeat(url: str, timeout_s: float) -> Outcome:
    """Ask for the URL that says that all is well."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "opsctl"})
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        return Outcome("failed", f"HTTP {error.code}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Outcome("failed", type(reason if isinstance(reason, Exception) else error).__name__)
    except TimedOut:
        return Outcome("failed", f"no answer within {timeout_s:.0f} s")
    return Outcome("sent")


def _to_program(task: Task, message: Message) -> Outcome:
    handed = json_line(HookMessage(run=task.run, message=message)) + "\n"
    try:
        ended = run_named_program(task.hook, os.environ, task.try_s, handed)
    except ProgramProblem as problem:
        return Outcome("unknown" if problem.has_begun else "failed", str(problem))
    except TimedOut:
        return Outcome("unknown", f"no answer within {task.try_s:.0f} s")
    return Outcome("sent") if ended.code == 0 else Outcome("failed", f"it ended with {ended.code}")


def _through_apprise(task: Task, message: Message, parts: frozenset[str], on_part: Callable[[str], None]) -> Outcome:
    wire = Wire()
    heard = _Heard()
    try:
        plugin = _plugin(task, message)
        if plugin is None:
            return Outcome("refused", "apprise cannot read this URL: apprise --details lists what it knows")
        if task.is_open and plugin.url(privacy=True) != plugin.url(privacy=False):
            return Outcome("refused", "there is a secret in it, and others can read it: write it into a file of yours")
        listen(wire, lambda: None)
        recipients = _remember_recipients(plugin, parts, on_part)
        logging.getLogger("apprise").addHandler(heard)
        title = printable(f"[{task.run}] {message.title} ({message.id})", " ")
        is_done = plugin.notify(
            title=title, body=message.body[:_LONGEST_BODY], notify_type=_type(message), body_format="text"
        )
    except TimedOut:
        if wire.accepted and wire.accepted >= recipients:
            return Outcome("sent")
        words = f"no answer within {task.try_s:.0f} s"
        return Outcome("unknown" if wire.has_handed_over else "failed", words)
    except Exception as error:
        wire.words.append(f"{type(error).__name__}: {error}")
        is_done = False
    if is_done:
        return Outcome("sent")
    words = "; ".join(dict.fromkeys([*wire.words, *heard.words])) or "not sent, without a word"
    if wire.is_refusal:
        return Outcome("refused", words)
    return Outcome("unknown" if wire.has_handed_over else "failed", words, wire.retry_after_s)


def _plugin(task: Task, message: Message) -> Any:
    """Apprise's plug-in for the URL; None for one that it cannot read. Nothing of it is kept on disk."""
    import apprise

    asset = apprise.AppriseAsset(async_mode=False, app_id="opsctl", app_desc="opsctl", app_url="", plugin_paths=[])
    plugin = apprise.Apprise.instantiate(task.url, asset=asset, suppress_exceptions=True)
    if plugin is None:
        return None
    plugin.retry = 0
    if "email" in type(plugin).__module__:
        # The same id at every try: a mail server or reader that has it already can tell.
        module = sys.modules[type(plugin).__module__]
        if hasattr(module, "make_msgid"):
            # Others write into the records that these come from: nothing there ends a header.
            mark, domain = (re.sub(r"[^\w.-]", "-", one, flags=re.ASCII) for one in (message.id, task.run_id or "run"))
            module.make_msgid = lambda *_, **__: f"<{mark}@{domain}.opsctl>"  # type: ignore[attr-defined]
        if "format=" not in task.url:
            plugin.notify_format = apprise.NotifyFormat.TEXT
    return plugin


def _remember_recipients(plugin: Any, parts: frozenset[str], on_part: Callable[[str], None]) -> int:
    """Let the plug-in skip recipients that have the message, and tell of each that gets it. Returns how many there are.

    Apprise 2.2 on asks so before each; an older one sends to all of them again after a try that failed for some.
    """

    def digest(key: Any, per_message: bool) -> str | None:
        if not isinstance(key, (str, int, tuple, list)):
            return None
        slot = plugin._slot(key, per_message) if hasattr(plugin, "_slot") else key
        return hashlib.sha256(repr(slot).encode(errors="replace")).hexdigest()[:16]

    def is_delivered(key: Any, per_message: bool = False) -> bool:
        return digest(key, per_message) in parts

    def mark_delivered(key: Any, per_message: bool = False) -> None:
        name = digest(key, per_message)
        if name is not None and len(plugin) > 1:
            on_part(name)

    plugin.is_delivered, plugin.mark_delivered = is_delivered, mark_delivered
    return max(1, len(plugin) - len(parts))


def _type(message: Message) -> str:
    return "info" if message.kind == "test" else _KINDS.get(message.severity, "warning")


class _Heard(logging.Handler):
    """What apprise says of a failure."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep its words."""
        self.words.append(record.getMessage())
