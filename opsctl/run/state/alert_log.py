"""The file `.opsctl/alerts.jsonl`: each alert message, and its result on each channel.

The lines alone, in the order of the file, decide what a channel still has to send, by any writer: no clocks are
compared. A channel's name in the file contains no secret.

`.opsctl/alerts.reserve` is disk space reserved for a full disk or quota: records are stored there until `alerts.json`
and `alerts.jsonl` can take them. It is overwritten in place. If a host dies during such a write, the stored records are
lost: at worst a message is sent a second time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from opsctl.core.files.reserve import room_left, write_over
from opsctl.core.files.state_files import (
    FULL_DISK,
    append_bytes,
    append_state,
    make_folder,
    read_lines,
    read_text,
    room_kept,
    write_state,
)
from opsctl.core.files.trusted import open_file
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from trainer.formats.file_lock import lock_within
from trainer.formats.json_text import json_line, plain
from trainer.formats.tolerant import convert, decode

Kind = Literal["new", "reminder", "recovery", "escalation", "silence", "handed-over", "test"]
#: Which channels a message is for, by the key of [alerts] that names them.
CHANNELS, ESCALATION = "channels", "escalate_to"

#: The results of a try: it arrived; unknown; it did not arrive; it never will.
RESULTS = ("sent", "unknown", "failed", "refused")
#: The wait after the first failed try in a row, doubled after each; where a message may have arrived, a longer one.
BACK_OFF_S, BACK_OFF_MOST_S, BACK_OFF_UNKNOWN_MOST_S = 60.0, 3600.0, 86_400.0
#: A channel that was not tried for so long is no longer in use.
ABANDONED = timedelta(days=3)


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something to tell, in words."""

    id: str
    kind: str  # a Kind
    at: datetime
    title: str
    body: str
    severity: str = "warning"
    keys: tuple[str, ...] = ()  # of the findings that it is about
    to: tuple[str, ...] = (CHANNELS,)


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line.

    message: one was made. joined: a user's settings name a channel, which gets the messages after the one `id`.
    sending: a try began; one of RESULTS ends it, and without one its sender died. part: one of several recipients has
    it. dropped: it will never be sent there. ready: its URL is available again. acknowledged, silenced, unsilenced:
    actions of users. full: from `at` to `until` the disk took no lines, and the reserve stored those before this one.
    """

    event: str
    at: datetime
    id: str = ""  # of the message
    channel: str = ""
    why: str = ""
    by: str = ""
    message: Message | None = None
    keys: tuple[str, ...] = ()  # acknowledged
    to: tuple[str, ...] = ()  # joined: of which messages it is one of the channels
    until: datetime | None = None  # silenced, full
    part: str = ""  # a digest of the recipient
    retry_after_s: float | None = None  # failed: what the server asked for


@dataclass(frozen=True)
class ChannelSeen:
    """The state of one channel."""

    name: str
    failing_since: datetime | None = None
    detail: str = ""
    waiting: int = 0  # messages that it has not taken yet
    waiting_since: datetime | None = None


@dataclass(frozen=True)
class Queue:
    """The messages that one channel still has to send, and when it may be tried."""

    channel: str
    owed: tuple[Message, ...] = ()  # oldest first
    unfinished: tuple[str, ...] = ()  # ids whose try has no end: their sender died
    parts: frozenset[tuple[str, str]] = frozenset()  # (id, recipient's digest) that has it
    failures: int = 0  # in a row, up to now
    failing_since: datetime | None = None
    last_at: datetime | None = None  # of the last of those
    wait_s: float = 0.0  # after it
    detail: str = ""
    is_unresolved: bool = False  # the last failure was that there is no URL to send to

    def is_due(self, now: datetime) -> bool:
        """Return whether it may be tried. A clock that was set back does not delay it."""
        return self.last_at is None or not timedelta(0) <= now - self.last_at < timedelta(seconds=self.wait_s)


def events(paths: RunPaths) -> list[Event]:
    """All lines, oldest first; none where nothing was ever made. Raises OSError where they cannot be read."""
    stored = (convert(line, Event) for line in read_reserve(paths).lines)
    lines = read_lines(paths.output, paths.alert_log, Event)
    return [*lines, *(one for one in stored if one is not None and one not in lines)]


def append_event(paths: RunPaths, event: Event) -> None:
    """Append to alerts.jsonl what is stored, then `event`; store that too where the disk is full. Raises OSError."""
    make_folder(paths.output, paths.state)
    with _opened(paths, os.O_RDWR) as fd:
        stored = _read(fd)
        try:
            stored = _settle_lines(paths, fd, stored)
            append_state(paths.output, paths.alert_log, event)
        except OSError as error:
            _store(fd, error, stored, lines=(*stored.lines, plain(event)))


@contextlib.contextmanager
def room_for_lines(paths: RunPaths, size_bytes: int) -> Iterator[None]:
    """Keep room for lines that have to be written right afterwards. Raises OSError where there is none."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(room_kept(paths.output, paths.state, size_bytes))
        except OSError as error:
            with _opened(paths, os.O_RDWR) as fd:
                has_room = fd is not None and room_left(fd, _read(fd)) >= size_bytes
            if error.errno not in FULL_DISK or not has_room:
                raise
        yield


def messages(lines: Iterable[Event]) -> list[Message]:
    """All messages, each once, oldest first."""
    found: dict[str, Message] = {}
    for line in lines:
        if line.event == "message" and line.message is not None:
            found.setdefault(line.message.id, line.message)
    return list(found.values())


def joins(lines: Sequence[Event], channel: str, to: Collection[str], now: datetime) -> Event | None:
    """Return the line by which a channel joins; None if it has. It gets what no channel has had."""
    joined = [line for line in lines if line.event == "joined" and line.channel == channel]
    wanted = tuple(sorted(to))
    if joined:
        is_same = joined[-1].to == wanted
        return None if is_same else Event(event="joined", at=now, id=joined[0].id, channel=channel, to=wanted)
    settled = {line.id for line in lines if line.event in ("sent", "dropped")}
    told = [message.id for message in messages(lines) if message.id in settled]
    return Event(event="joined", at=now, id=told[-1] if told else "", channel=channel, to=wanted)


def queue_of(lines: Sequence[Event], channel: str) -> Queue:
    """Return the messages that `channel` still has to send; none for one that never joined."""
    joined = [line for line in lines if line.event == "joined" and line.channel == channel]
    if not joined:
        return Queue(channel)
    after, to = joined[0].id, set(joined[-1].to)
    made = messages(lines)
    ids = [message.id for message in made]
    if not after:
        first = 0
    elif after in ids:
        first = ids.index(after) + 1
    else:  # its line is lost: messages before the joining were probably sent
        first = len(messages(lines[: lines.index(joined[0])]))
    own = [line for line in lines if line.channel == channel]
    done = {line.id for line in own if line.event in ("sent", "dropped")}
    owed = tuple(one for one in made[first:] if one.id not in done and to & set(one.to) and one.kind != "test")
    begun: set[str] = set()
    for line in own:
        if line.event == "sending":
            begun.add(line.id)
        elif line.event in RESULTS:
            begun.discard(line.id)
    parts = frozenset((line.id, line.part) for line in own if line.event == "part")
    failing = _failures(own)
    if not failing:
        return Queue(channel, owed, tuple(sorted(begun)), parts)
    last = failing[-1]
    most_s = BACK_OFF_UNKNOWN_MOST_S if last.event == "unknown" else BACK_OFF_MOST_S
    wait_s = min(most_s, BACK_OFF_S * 2 ** min(len(failing) - 1, 20))
    return Queue(
        channel,
        owed,
        tuple(sorted(begun)),
        parts,
        failures=len(failing),
        failing_since=failing[0].at,
        last_at=last.at,
        wait_s=max(wait_s, min(last.retry_after_s or 0.0, BACK_OFF_UNKNOWN_MOST_S)),
        detail=last.why,
        is_unresolved=not last.id,
    )


def channels_seen(lines: Sequence[Event], now: datetime) -> list[ChannelSeen]:
    """Return every channel that settings name, sorted; one that was not tried for days is not failing."""
    found = []
    for name in sorted({line.channel for line in lines if line.event == "joined"}):
        queue = queue_of(lines, name)
        since, oldest = queue.failing_since, min((one.at for one in queue.owed), default=None)
        if since is not None and queue.last_at is not None and now - queue.last_at > ABANDONED:
            found.append(ChannelSeen(name, None, "not tried for days", len(queue.owed), oldest))
        else:
            found.append(ChannelSeen(name, since, queue.detail, len(queue.owed), oldest))
    return found


def _failures(own: Sequence[Event]) -> list[Event]:
    """Return the last failed tries in a row, oldest first."""
    row: list[Event] = []
    for line in own:
        if line.event in ("sent", "dropped", "ready"):
            row = []
        elif line.event in ("failed", "refused", "unknown"):
            row.append(line)
    return row


#: Room for the findings of a run and for a few hundred lines about them.
RESERVE_BYTES = 128 << 10
_LOCK_WAIT_S = 5.0
#: The kernel's lock is the process's; several threads send at once.
_THREADS = threading.Lock()


class Stored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Records that the two files could not take."""

    since: datetime | None = None  # the first of it; None: nothing is stored
    lines: tuple[dict[str, Any], ...] = ()  # of alerts.jsonl
    moved: int = 0  # lines that the log has since taken
    memory: dict[str, Any] | None = None  # all of alerts.json
    replaces: str = ""  # the digest of the alerts.json that `memory` is newer than

    @property
    def records(self) -> int:
        """Return how many the reserve was needed for."""
        return len(self.lines) + self.moved + (self.memory is not None)

    def newest_memory(self, text: str | None) -> dict[str, Any] | None:
        """Return the stored memory, or None if alerts.json, whose text is given, was written after it."""
        return self.memory if self.replaces == _digest(text) else None

    def describe(self, paths: RunPaths) -> str:
        """Return what happened in a line; empty where nothing is stored."""
        if self.since is None:
            return ""
        since = f"{self.since:%Y-%m-%d %H:%M}"
        return f"no space left since {since}: {self.records} alert records stored in {paths.alert_reserve}"


def read_reserve(paths: RunPaths) -> Stored:
    """Return what is stored; nothing where that cannot be read."""
    for flags in (os.O_RDWR, os.O_RDONLY):  # a reader may not be able to write
        with contextlib.suppress(OSError), _opened(paths, flags) as fd:
            return _read(fd)
    return Stored()


def write_memory(paths: RunPaths, value: dict[str, Any]) -> None:
    """Replace alerts.json, or store `value` where the disk is full. Raises OSError."""
    with _opened(paths, os.O_RDWR) as fd:
        stored = _read(fd)
        try:
            write_state(paths.output, paths.alerts, value)
        except OSError as error:
            replaces = _digest(read_text(paths.output, paths.alerts))
            _store(fd, error, stored, memory=value, replaces=replaces)


def settle_reserve(paths: RunPaths) -> Stored:
    """Move what is stored to the two files if the disk takes it; returns what was stored. Raises OSError."""
    with _opened(paths, os.O_RDWR) as fd:
        before = _read(fd)
        if before.since is None:
            return before
        try:
            stored = _settle_lines(paths, fd, before)
            memory = stored.newest_memory(read_text(paths.output, paths.alerts))
            if memory is not None:
                write_state(paths.output, paths.alerts, memory)
            why = f"no space left: {before.records} records were stored in {paths.alert_reserve.name}"
            full = {"event": "full", "at": before.since, "until": now(), "why": why}
            append_state(paths.output, paths.alert_log, full)
            _write(fd, Stored())
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
        return before


def _settle_lines(paths: RunPaths, fd: int | None, stored: Stored) -> Stored:
    if not stored.lines:
        return stored
    append_bytes(paths.output, paths.alert_log, "".join(f"{json_line(one)}\n" for one in stored.lines).encode())
    kept = msgspec.structs.replace(stored, lines=(), moved=stored.moved + len(stored.lines))
    _write(fd, kept)
    return kept


def _store(fd: int | None, error: OSError, stored: Stored, **more: Any) -> None:
    """Add to what is stored. Raises `error` where it is no full disk, or the reserve takes no more either."""
    if fd is None or error.errno not in FULL_DISK:
        raise error
    try:
        _write(fd, msgspec.structs.replace(stored, since=stored.since or now(), **more))
    except OSError:
        raise error from None


def _write(fd: int | None, stored: Stored) -> None:
    assert fd is not None
    write_over(fd, stored)


def _read(fd: int | None) -> Stored:
    text = b"" if fd is None else os.pread(fd, RESERVE_BYTES, 0).strip()
    return decode(text, Stored) or Stored()


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode(errors="replace")).hexdigest()


@contextlib.contextmanager
def _opened(paths: RunPaths, flags: int) -> Iterator[int | None]:
    """Open the reserve under its lock; None where there is none. Raises OSError."""
    with _THREADS:
        try:
            fd = open_file(paths.output, paths.alert_reserve, flags)
        except FileNotFoundError:
            yield None
            return
        try:
            if flags != os.O_RDONLY:
                lock_within(fd, _LOCK_WAIT_S)
            yield fd
        finally:
            os.close(fd)
