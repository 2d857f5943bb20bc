"""The process that sends on one channel: `python -P -m opsctl.monitoring.alerts.send`, with its task on stdin.

It holds the channel's lock while it works, so that no other process sends the same message. It records each try before
it begins and right after it ended, so that killing it, or its parent, leaves a true record. A try that takes too long
ends the process: a server that hangs delays no other channel.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from opsctl.core.account import account_and_host
from opsctl.core.errors import file_problem
from opsctl.core.files.trusted import open_file
from opsctl.core.output import printable, show
from opsctl.core.process import ProgramProblem, run_named_program
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.secrets import Redactor
from opsctl.run.state.alert_log import Event, Message, append_event, events, queue_of
from trainer.formats.file_lock import lock_within
from trainer.formats.json_text import json_line

#: Longer bodies are cut: services refuse them.
_LONGEST_BODY = 8000
#: A message that has failed so often is tried once more after the one after it was delivered, and then dropped: the
#: message itself is at fault.
_FAILURES_MOST = 3
_KINDS = {"critical": "failure", "warning": "warning", "unknown": "warning", "ok": "success"}


class Task(msgspec.Struct, kw_only=True):
    """The task on stdin: the only way by which a secret reaches the process."""

    output: str
    run: str  # its name
    run_id: str
    channel: str
    url: str = ""
    hook: list[str] = []
    is_open: bool = False  # the URL must have no secret
    lock: str = ""  # the file whose lock it holds
    messages: list[Message] | None = None  # these, without a record; None: those that the channel has yet to take
    is_heartbeat: bool = False  # only request the URL
    budget_s: float = 60.0  # no try begins after that
    try_s: float = 30.0  # the longest that one try may take


class Report(msgspec.Struct, kw_only=True):
    """One line of stdout: the result of a try."""

    result: str  # "sent", "failed", "unknown", "busy": another process sends, "disk": not tried
    id: str = ""
    why: str = ""


class HookMessage(msgspec.Struct, kw_only=True):
    """The line of JSON on stdin of a program of the user's own."""

    schema_version: int = 1
    run: str
    message: Message


def main() -> None:
    """Do the task on stdin and print a report for each try."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    try:
        _Sender(task).work()
    except BrokenPipeError:
        os._exit(0)  # the parent has ended; all is on record


class _Sender:
    def __init__(self, task: Task) -> None:
        self.task, self.paths = task, RunPaths(Path(task.output))
        self.redact = Redactor([task.url]) if task.url and not task.is_open else Redactor([])
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def work(self) -> None:
        """Send the messages of the task."""
        if self.task.is_heartbeat:
            _print(self._tried(partial(_request, self.task.url, self.task.try_s)))
        elif self.task.messages is not None:
            for message in self.task.messages:
                _print(self._tried(partial(self._deliver, message, ())))
        else:
            lock = open_file(self.paths.output, Path(self.task.lock), os.O_RDWR | os.O_CREAT)
            try:
                if lock_within(lock, 0):
                    self._send_all()
                else:
                    _print(Report(result="busy"))
            except OSError as error:  # without a record a message would be sent again and again
                _print(Report(result="disk", why=f"not tried: {file_problem(error, self.paths.alert_log)}"))
            finally:
                os.close(lock)

    def _send_all(self) -> None:
        """Send what is owed, in order, until it is done, something fails, or time is up."""
        until = time.monotonic() + self.task.budget_s
        lines = events(self.paths)
        queue = queue_of(lines, self.task.channel)
        for lost in queue.unfinished:
            why = "its sender was ended before there was an answer; it is sent again"
            self._record("unknown", lost, why)
            _print(Report(result="unknown", id=lost, why=why))
        failures = Counter(
            one.id for one in lines if one.channel == self.task.channel and one.event in ("failed", "unknown")
        )
        passed_over: list[Message] = []
        for message in queue.owed:
            if time.monotonic() >= until:
                return
            report = self._send(message)
            if report.result == "failed" and failures[message.id] + 1 >= _FAILURES_MOST:
                passed_over.append(message)
            elif report.result != "sent":
                return
            while report.result == "sent" and passed_over and time.monotonic() < until:
                last = self._send(one := passed_over.pop(0))
                if last.result == "failed":
                    self._record("dropped", one.id, f"it failed again after the next one was delivered: {last.why}")
                elif last.result != "sent":
                    return

    def _send(self, message: Message) -> Report:
        """Try once, record the begin and the result, and print it. Raises OSError if the log cannot be written."""
        queue = queue_of(events(self.paths), self.task.channel)
        parts = {part for id_, part in queue.parts if id_ == message.id}
        self._record("sending", message.id)
        report = self._tried(partial(self._deliver, message, parts))
        with contextlib.suppress(OSError):  # the next sender records the end of this try
            self._record(report.result, message.id, report.why)
        _print(report := msgspec.structs.replace(report, id=message.id))
        return report

    def _record(self, event: str, message_id: str, why: str = "", part: str = "") -> None:
        by, channel = account_and_host(), self.task.channel
        append_event(
            self.paths, Event(event=event, at=now(), id=message_id, channel=channel, by=by, why=why, part=part)
        )

    def _tried(self, try_once: Callable[[], str]) -> Report:
        """Return the result of one try, without a secret. One that takes longer than it may ends the process."""
        if not self.task.hook and not self.task.is_heartbeat:
            _load_senders()  # its time is not the server's
        signal.setitimer(signal.ITIMER_REAL, self.task.try_s)
        try:
            why = try_once()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return Report(result="failed" if why else "sent", why=self.redact(why))

    def _deliver(self, message: Message, parts: Collection[str]) -> str:
        """Send it, and return why that failed; empty when it arrived. parts: recipients that have it already."""
        if self.task.hook:
            return _to_program(self.task, message)
        heard = _Heard()
        try:
            plugin = _plugin(self.task, message)
            if plugin is None:
                return "apprise cannot read this URL: apprise --details lists the services that it knows"
            if self.task.is_open and plugin.url(privacy=True) != plugin.url(privacy=False):
                return "it contains a secret, and other users can read it: write it into a file that only you can read"
            left = self._remember_recipients(plugin, message, parts)
            if parts and left == [0]:  # the last sender ended after the server had taken it
                return ""
            logging.getLogger("apprise").addHandler(heard)
            title = printable(f"[{self.task.run}] {message.title} ({message.id})", " ")
            kind = "info" if message.kind == "test" else _KINDS.get(message.severity, "warning")
            body = message.body[:_LONGEST_BODY]
            if plugin.notify(title=title, body=body, notify_type=kind, body_format="text") or left == [0]:
                return ""
        except Exception as error:
            heard.words.append(f"{type(error).__name__}: {error}")
        return "; ".join(dict.fromkeys(heard.words)) or "not sent, for a reason that apprise does not give"

    def _remember_recipients(self, plugin: Any, message: Message, parts: Collection[str]) -> list[int]:
        """Let the plug-in skip recipients that have the message, and record each that gets it.

        Returns a list with the number of those that do not have it yet, which falls as they get it. Apprise 2.2 and
        newer ask before each recipient; an older one sends to all of them again after a try that failed for some.
        """
        left = [len(plugin) - len(parts)]

        def digest(key: Any, per_message: bool) -> str:
            slot = plugin._slot(key, per_message) if hasattr(plugin, "_slot") else key
            return hashlib.sha256(repr(slot).encode(errors="replace")).hexdigest()[:16]

        def is_delivered(key: Any, per_message: bool = False) -> bool:
            return digest(key, per_message) in parts

        def mark_delivered(key: Any, per_message: bool = False) -> None:
            left[0] -= 1
            if self.task.messages is None:
                self._record("part", message.id, part=digest(key, per_message))

        plugin.is_delivered, plugin.mark_delivered = is_delivered, mark_delivered
        return left


def _load_senders() -> None:
    """Load apprise with all its plug-ins, some 0.3 s of work."""
    from apprise import manager_plugins

    plugins: Any = manager_plugins.NotificationManager
    plugins().load_modules()


def _plugin(task: Task, message: Message) -> Any:
    """Return apprise's plug-in for the URL; None for one that it cannot read. It keeps nothing on disk."""
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
            # Others can write the records that these come from: nothing there ends a header.
            mark, domain = (re.sub(r"[^\w.-]", "-", one, flags=re.ASCII) for one in (message.id, task.run_id or "run"))
            module.make_msgid = lambda *_, **__: f"<{mark}@{domain}.opsctl>"  # type: ignore[attr-defined]
        if "format=" not in task.url:
            plugin.notify_format = apprise.NotifyFormat.TEXT
    return plugin


def _to_program(task: Task, message: Message) -> str:
    line = json_line(HookMessage(run=task.run, message=message)) + "\n"
    try:
        ended = run_named_program(task.hook, os.environ, 0.9 * task.try_s, line)
    except ProgramProblem as problem:
        return str(problem)
    return f"it ended with {ended.code}" if ended.code else ""


def _request(url: str, timeout_s: float) -> str:
    """Request the heartbeat's URL, and return why that failed."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "opsctl"})
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return type(reason if isinstance(reason, Exception) else error).__name__
    return ""


class _Heard(logging.Handler):
    """Apprise's warnings, and the causes that it logs for its developers alone."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        logging.getLogger("apprise").setLevel(logging.DEBUG)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        text = record.getMessage()
        cause = text.removeprefix("Socket Exception: ")
        if record.levelno >= logging.WARNING or (cause != text and "url: " not in cause):
            self.words.append(cause)


def _print(report: Report) -> None:
    show(msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main()
