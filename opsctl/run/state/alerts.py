"""`.opsctl/alerts.json`: the memory of findings: since when, who was notified, who acknowledged.

All watchers of a run share it: a process that finds something makes the message, under one lock, and a process with
channels sends it. The memory and its messages are written at once. The log gets them right after, or from the next
process. Without the memory, or with a damaged one, every finding is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.files.reserve import keep_ballast, with_ballast
from opsctl.core.files.state_files import create_state, locked, make_folder, read_text, write_state
from opsctl.core.files.trusted import open_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import alert_log
from opsctl.run.state.alert_log import Event, Message
from trainer.formats.json_text import json_line
from trainer.formats.tolerant import decode

SCHEMA_VERSION = 1
#: How long others' short changes are waited for.
LOCK_WAIT_S = 20.0
#: Disk that is given up for the findings of a run and a few hundred lines about them when the disk is full.
RESERVE_BYTES = 128 << 10


class Remembered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding that is open, or has ended without everybody knowing yet."""

    severity: Annotated[str, msgspec.Meta(pattern=r"\A(warning|critical|unknown)\Z")]  # as last seen
    since: datetime
    last_seen: datetime
    text: str = ""
    todo: str = ""
    evidence: tuple[str, ...] = ()
    told_at: datetime | None = None  # when it was last sent as new; None: not sent
    told_severity: Annotated[str, msgspec.Meta(pattern=r"\A(|warning|critical|unknown)\Z")] = (
        ""  # the worst severity that was sent
    )
    reminders: int = 0
    reminded_at: datetime | None = None
    escalated_at: datetime | None = None
    acknowledged_by: str = ""
    acknowledged_at: datetime | None = None
    acknowledged_why: str = ""
    held_since: datetime | None = None  # it would have been told then, but for the hour's limit or the quiet hours
    recovered_at: datetime | None = None  # it has ended; its recipients are notified when this is allowed


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A silence: nothing is sent until its end."""

    until: datetime
    by: str = ""
    at: datetime | None = None
    why: str = ""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    schema_version: int = SCHEMA_VERSION
    findings: dict[str, Remembered] = {}
    silence: Silence | None = None
    hour: tuple[datetime, ...] = ()  # when the last hour's messages were made
    made: tuple[Message, ...] = ()  # those that the log may not have yet


@dataclass(frozen=True)
class Noted:
    """A finding of a process that runs no checks: a job, a tick."""

    key: str  # that of the check which finds the same, so that it also ends it
    severity: str  # "warning" or "critical"
    text: str
    todo: str = ""


@dataclass
class Opened:
    """The memory in the hands of this process, its lock held."""

    paths: RunPaths
    memory: Memory
    problem: str = ""  # what was wrong with the file

    def write(self, memory: Memory, new: Sequence[Message] = (), said: Sequence[Event] = ()) -> None:
        """Keep `memory`; record new messages and what people said. Raises OSError if nothing was kept."""
        kept = msgspec.structs.replace(memory, made=(*self.memory.made, *new))
        output, file = self.paths.output, self.paths.alerts
        with_ballast(output, self.paths.alert_reserve, lambda: write_state(output, file, kept))
        self.memory = kept
        try:
            for event in said:
                alert_log.append_event(self.paths, event)
        except OSError as error:
            self.problem = f"not on record: cannot write {self.paths.alert_log}: {error.strerror}"
        self.settle()

    def settle(self) -> None:
        """Write the memory's messages to the log; if this fails, the next process does."""
        if not self.memory.made:
            return
        try:
            known = {one.id for one in alert_log.messages(alert_log.events(self.paths))}
            for one in self.memory.made:
                if one.id not in known:
                    alert_log.append_event(self.paths, Event(event="message", at=one.at, id=one.id, message=one))
        except OSError as error:
            self.problem = f"sent later: cannot write {self.paths.alert_log}: {error.strerror}"
            return
        self.memory = msgspec.structs.replace(self.memory, made=())


@contextlib.contextmanager
def opened(paths: RunPaths, what: str) -> Iterator[Opened]:
    """Open the memory, locked for other processes. Raises OpsctlError if it is locked too long; OSError."""
    with contextlib.suppress(OSError):  # what is missing of it the disk may have no room for now
        keep_room(paths)
    make_folder(paths.output, paths.state)
    with locked(paths.output, paths.alerts_lock, LOCK_WAIT_S, what):
        found = Opened(paths, *_read(paths))
        found.settle()
        yield found


def keep_room(paths: RunPaths) -> None:
    """Make the files that alerts need on a disk that will be full one day. Raises OSError."""
    make_folder(paths.output, paths.alert_senders)
    for file in (paths.alerts_lock, paths.alert_log):
        os.close(open_file(paths.output, file, os.O_RDWR | os.O_CREAT))
    create_state(paths.output, paths.alerts, Memory())
    keep_ballast(paths.output, paths.alert_reserve, RESERVE_BYTES)


def remembered(paths: RunPaths) -> Memory:
    """Return the memory for readers. Raises OSError if it cannot be read."""
    return _read(paths)[0]


def open_alerts(paths: RunPaths) -> dict[str, Remembered]:
    """Return the open findings by key. Raises OSError if they cannot be read."""
    return {key: one for key, one in remembered(paths).findings.items() if one.recovered_at is None}


def silence_of(paths: RunPaths, now: datetime) -> Silence | None:
    """Return the silence in force now. Raises OSError."""
    silence = remembered(paths).silence
    return silence if silence is not None and now < silence.until else None


def note(paths: RunPaths, noted: Sequence[Noted], now: datetime) -> int:
    """Make messages of findings that are new or worse; returns how many. Raises OpsctlError, OSError."""
    if not noted:
        return 0
    with opened(paths, "note an alert") as memory:
        findings, new = dict(memory.memory.findings), []
        for one in noted:
            known = findings.get(one.key)
            is_open = known is not None and known.recovered_at is None
            is_worse = known is not None and (known.told_severity, one.severity) == ("warning", "critical")
            if known is not None and is_open and not is_worse and known.told_at is not None:
                continue
            findings[one.key] = Remembered(
                severity=one.severity,
                since=known.since if known is not None and is_open else now,
                last_seen=now,
                text=one.text,
                todo=one.todo,
                told_at=now,
                told_severity=one.severity,
            )
            body = f"{one.text}\n" + (f"do: {one.todo}\n" if one.todo else "") + f"({one.key})"
            title = f"{one.severity.upper()}: {one.text}"
            new.append(made("handed-over", now, title, body, one.severity, (one.key,)))
        if new:
            memory.write(msgspec.structs.replace(memory.memory, findings=findings), new)
        return len(new)


def note_recovered(paths: RunPaths, keys: Sequence[str], now: datetime) -> int:
    """Say that what was noted has ended; how many were open. Raises OpsctlError, OSError."""
    if not set(keys) & set(open_alerts(paths)):
        return 0
    with opened(paths, "note the end of an alert") as memory:
        findings, new = dict(memory.memory.findings), []
        for key in keys:
            known = findings.pop(key, None)
            if known is not None and known.recovered_at is None and known.told_at is not None:
                new.append(made("recovery", now, f"recovered: {known.text}", f"{known.text} ({key})", "ok", (key,)))
        memory.write(msgspec.structs.replace(memory.memory, findings=findings), new)
        return len(new)


def acknowledge(paths: RunPaths, keys: Sequence[str], why: str, now: datetime) -> list[str]:
    """Put on record that the caller looks after what `meant` says; returns that. Raises OpsctlError, OSError."""
    with opened(paths, "acknowledge") as memory:
        findings = dict(memory.memory.findings)
        wanted = meant(keys, findings)
        if wanted:
            for key in wanted:
                findings[key] = msgspec.structs.replace(
                    findings[key], acknowledged_by=account_name(), acknowledged_at=now, acknowledged_why=why
                )
            said = Event(event="acknowledged", at=now, keys=tuple(wanted), by=account_name(), why=why)
            memory.write(msgspec.structs.replace(memory.memory, findings=findings), said=[said])
        return wanted


def meant(keys: Sequence[str], findings: Mapping[str, Remembered]) -> list[str]:
    """Return the open findings that `keys` name: by key, check or subject; all for none. Raises OpsctlError."""
    is_open = sorted(key for key, one in findings.items() if one.recovered_at is None)
    if not keys:
        return is_open
    wanted: dict[str, None] = {}
    for key in [" ".join(keys)] if " ".join(keys) in is_open else keys:
        named = (
            [key]
            if key in is_open
            else [one for one in is_open if key in (one.partition(":")[0], one.partition(" ")[0])]
        )
        if not named:
            listed = ", ".join(map(shlex.quote, is_open)) or "no open alerts"
            raise OpsctlError(f"not open: {key}; open: {listed}")
        wanted.update(dict.fromkeys(named))
    return list(wanted)


def silence(paths: RunPaths, until: datetime | None, why: str, now: datetime) -> Silence | None:
    """Let nothing be told until then; None: from now on everything. Returns what was so before. Raises as above."""
    with opened(paths, "silence alerts") as memory:
        before = memory.memory.silence
        who = account_name()
        # One that ends is not taken away: at its end the next look says what is still open.
        after = Silence(until=until or now, by=who, at=now, why=why) if until or before else None
        if after is not None:
            event = Event(event="silenced" if until else "unsilenced", at=now, by=who, why=why, until=until)
            memory.write(msgspec.structs.replace(memory.memory, silence=after), said=[event])
        return before


def made(kind: str, at: datetime, title: str, body: str, severity: str, keys: Sequence[str], **more: Any) -> Message:
    """Return a message, with an id made from its content and time."""
    text = json_line([kind, at, title, body, *keys])
    name = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:10]
    return Message(id=name, kind=kind, at=at, title=title, body=body, severity=severity, keys=tuple(keys), **more)


def _read(paths: RunPaths) -> tuple[Memory, str]:
    """Return the memory, and the problem of its file. Raises OSError."""
    text = read_text(paths.output, paths.alerts)
    memory = decode(text, Memory) if text else Memory()
    if memory is None:
        return Memory(), f"{paths.alerts} is damaged: open findings are sent again, acknowledgements are lost"
    return memory, ""
