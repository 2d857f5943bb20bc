"""The file `.opsctl/alerts.jsonl`: each alert message, and its result on each channel.

The lines alone, in the order of the file, decide what a channel still has to send, by any writer: no clocks are
compared. A channel's name in the file contains no secret. On a full disk `.opsctl/alerts.reserve` makes room for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from opsctl.core.files.reserve import with_ballast
from opsctl.core.files.state_files import append_state, make_folder, read_lines
from opsctl.run.config.paths import RunPaths

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
    actions of users.
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
    until: datetime | None = None  # silenced
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
    dropped: int = 0  # messages of the last days that it never took, and that no user has acknowledged


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
    """Return all lines, oldest first; none without a file. Raises OSError where they cannot be read."""
    return read_lines(paths.output, paths.alert_log, Event)


def append_event(paths: RunPaths, event: Event) -> None:
    """Append a line, if necessary in the room of the reserve. Raises OSError."""
    make_folder(paths.output, paths.state)
    with_ballast(paths.output, paths.alert_reserve, lambda: append_state(paths.output, paths.alert_log, event))


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
        dropped = _dropped(lines, name, now)
        detail = queue.detail or (dropped[-1].why if dropped else "")
        if since is not None and queue.last_at is not None and now - queue.last_at > ABANDONED:
            since, detail = None, "not tried for days"
        found.append(ChannelSeen(name, since, detail, len(queue.owed), oldest, len(dropped)))
    return found


def _dropped(lines: Sequence[Event], channel: str, now: datetime) -> list[Event]:
    """Return the recent drops of a channel since a user acknowledged the finding about it."""
    dropped: list[Event] = []
    for line in lines:
        if line.event == "dropped" and line.channel == channel and now - line.at <= ABANDONED:
            dropped.append(line)
        elif line.event == "acknowledged" and f"channels:{channel}" in line.keys:
            dropped = []
    return dropped


def _failures(own: Sequence[Event]) -> list[Event]:
    """Return the last failed tries in a row, oldest first."""
    row: list[Event] = []
    for line in own:
        if line.event in ("sent", "dropped", "ready"):
            row = []
        elif line.event in ("failed", "refused", "unknown"):
            row.append(line)
    return row
