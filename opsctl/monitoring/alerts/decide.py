"""The messages to send now: a pure function of what is remembered, what was found, and the time.

A finding is reported once when it begins or becomes worse, again at growing intervals until it is acknowledged, and
once when it ends if it was reported. A check that could not see neither ends anything nor reminds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta

import msgspec

from opsctl.core.output import printable
from opsctl.core.timestamps import iso
from opsctl.monitoring.check import can_tell
from opsctl.monitoring.finding import Finding, Severity
from opsctl.run.state.alert_log import CHANNELS, ESCALATION, Message
from opsctl.run.state.alerts import Memory, Remembered, Silence, made
from opsctl.slurm.durations import format_duration

_HOUR = timedelta(hours=1)
#: A check that cannot see is worth a message when it stays so; a restart of the controller is not.
BLIND_AFTER = timedelta(hours=1)
#: A moment further ahead than a clock is ever stepped back was written under a wrong clock.
_WRONG_CLOCK = timedelta(hours=26)
#: Two checks overlap by no more than one takes; a finding seen longer ahead was seen under another clock.
_CROSSING = timedelta(minutes=2)
#: Findings that a message reports with all they have; the rest have a line each.
_WHOLE = 20
_RANK = {"": 0, "unknown": 1, "warning": 1, "critical": 2}
_WORDS = {Severity.WARNING: "warning", Severity.CRITICAL: "critical", Severity.UNKNOWN: "unknown"}


_Findings = Mapping[str, Remembered]


@dataclass(frozen=True)
class Rules:
    """[alerts], in numbers."""

    remind_after: timedelta = timedelta(hours=6)
    remind_most: timedelta = timedelta(days=2)
    escalate_after: timedelta | None = timedelta(hours=1)  # None: no escalation channel
    per_hour: int = 12
    quiet: tuple[time, time] | None = None  # local times of day


@dataclass
class _State:
    """The state of one decision."""

    now: datetime
    rules: Rules
    findings: dict[str, Remembered]
    hour: list[datetime]
    messages: list[Message] = field(default_factory=list)

    @property
    def has_room(self) -> bool:
        """Return whether one more message that is not critical may be made in this hour."""
        return len(self.hour) < self.rules.per_hour

    @property
    def is_quiet(self) -> bool:
        """Return whether only what is critical may be sent at this time of day."""
        if self.rules.quiet is None:
            return False
        begin, end = self.rules.quiet
        at = self.now.time().replace(tzinfo=None)
        return begin <= at < end if begin <= end else at >= begin or at < end

    def may_send(self, severity: str) -> bool:
        """Return whether a message of this severity may be made now."""
        return severity == "critical" or (self.has_room and not self.is_quiet)

    def send(self, kind: str, title: str, body: str, keys: Sequence[str], to: tuple[str, ...] = (CHANNELS,)) -> None:
        """Make a message."""
        severity = max((self.findings[key].severity for key in keys), key=_RANK.__getitem__, default="warning")
        if kind == "recovery":
            severity = "ok"
        self.messages.append(made(kind, self.now, title, body, severity, keys, to=to))
        self.hour.append(self.now)

    def change(self, key: str, **changes: object) -> None:
        """Remember something else of `key`."""
        self.findings[key] = msgspec.structs.replace(self.findings[key], **changes)


def decide(
    memory: Memory, found: Iterable[Finding], looked_at: Collection[str], now: datetime, rules: Rules
) -> tuple[Memory, list[Message]]:
    """Return what to remember from now on, and the messages in the order in which they are to be sent.

    looked_at: names of the checks that ran. now: in the local zone, by whose time of day it is quiet.
    """
    found = list(found)
    hour = [at for at in memory.hour if abs(now - at) < _HOUR]
    this = _State(now, rules, dict(memory.findings), hour)
    _take_in(this, found, looked_at)
    silence = memory.silence
    if silence is None or now >= silence.until:
        was_silent, silence = silence, None
        if was_silent is not None and not _after_silence(this, was_silent):
            silence = was_silent  # reported when it may be
        _news(this)
        _escalations(this)
        _recoveries(this)
        _reminders(this, found, looked_at)
    return Memory(
        schema_version=memory.schema_version,
        findings=this.findings,
        silence=silence,
        hour=tuple(this.hour),
        made=memory.made,
    ), this.messages


def _take_in(this: _State, found: Sequence[Finding], looked_at: Collection[str]) -> None:
    """Remember what was found, and that what is no longer found has ended."""
    seen = _problems(found)
    for key, one in seen.items():
        known = this.findings.get(key)
        severity = _WORDS[one.severity]
        if known is None:
            since = one.since if one.since is not None and one.since <= this.now else this.now
            known = Remembered(severity=severity, since=since, last_seen=this.now)
        is_worse = _RANK[severity] > _RANK[known.told_severity or severity]
        forgotten = {"acknowledged_by": "", "acknowledged_at": None, "acknowledged_why": ""} if is_worse else {}
        this.findings[key] = msgspec.structs.replace(
            known,
            severity=severity,
            last_seen=this.now,
            text=one.text,
            todo=one.todo,
            evidence=one.evidence,
            recovered_at=None,
            **forgotten,
        )
    for key, known in list(this.findings.items()):
        if key in seen or known.recovered_at is not None:
            continue
        if this.now < known.last_seen <= this.now + _CROSSING:
            continue  # another process has seen it since
        has_ended = _sees_again(key, found, looked_at) if key.endswith("?") else can_tell(key, found, looked_at)
        if has_ended and known.told_at is None:
            del this.findings[key]
        elif has_ended:
            this.change(key, recovered_at=this.now)


def _problems(found: Sequence[Finding]) -> dict[str, Finding]:
    """Return key -> its worst finding; what a check cannot see has a key of its own, with `?` at its end."""
    seen: dict[str, Finding] = {}
    for one in found:
        if one.severity is Severity.OK:
            continue
        key = f"{one.key}?" if one.severity is Severity.UNKNOWN else one.key
        known = seen.get(key)
        if known is None or known.severity < one.severity:
            seen[key] = one
    return seen


def _sees_again(key: str, found: Iterable[Finding], looked_at: Collection[str]) -> bool:
    """Return whether the check of what could not be seen ran, and could see."""
    check = key.partition(":")[0].removesuffix("?")
    blind = {f"{one.key}?" for one in found if one.severity is Severity.UNKNOWN}
    return check in looked_at and key not in blind


def _news(this: _State) -> None:
    """Make one message about all that is new, or worse than was reported."""
    new = {
        key: one
        for key, one in this.findings.items()
        if one.recovered_at is None
        and _RANK[one.severity] > _RANK[one.told_severity]
        and (one.severity != "unknown" or this.now - one.since >= BLIND_AFTER or one.since > this.now)
    }
    may_all = this.may_send("warning")
    sendable = {key: one for key, one in new.items() if may_all or one.severity == "critical"}
    for key, one in new.items():
        if key not in sendable and one.held_since is None:
            this.change(key, held_since=this.now)
    if not sendable:
        return
    this.send("new", *_news_text(sendable, this.now), list(sendable))
    for key, one in sendable.items():
        this.change(key, told_at=this.now, told_severity=one.severity, reminders=0, reminded_at=None, escalated_at=None)


def _escalations(this: _State) -> None:
    """Make one message to [alerts] escalate_to about what is critical and was not acknowledged in time."""
    after = this.rules.escalate_after
    if after is None:
        return
    late = {
        key: one
        for key, one in this.findings.items()
        if _waits(one)
        and one.severity == "critical"
        and one.escalated_at is None
        and one.told_at is not None
        and _since(one.told_at, this.now) >= after
    }
    if late:
        this.send("escalation", *_escalation_text(late, this.now), list(late), to=(ESCALATION,))
        for key in late:
            this.change(key, escalated_at=this.now)


def _recoveries(this: _State) -> None:
    """Make one message about all that was reported and has ended, also to those to whom it was escalated."""
    ended = {key: one for key, one in this.findings.items() if one.recovered_at is not None}
    sendable = {
        key: one
        for key, one in ended.items()
        if this.has_room and (not this.is_quiet or one.told_severity == "critical")
    }
    escalated = {key: one for key, one in sendable.items() if one.escalated_at is not None}
    others = {key: one for key, one in sendable.items() if key not in escalated}
    for part, to in ((escalated, (CHANNELS, ESCALATION)), (others, (CHANNELS,))):
        if part and this.has_room:
            this.send("recovery", *_recovery_text(part, this.now), list(part), to=to)
            for key in part:
                del this.findings[key]


def _reminders(this: _State, found: Sequence[Finding], looked_at: Collection[str]) -> None:
    """Make one message about all that is due again; not about what could not be seen now."""
    due = {}
    for key, one in this.findings.items():
        last = one.reminded_at or one.told_at
        if not _waits(one) or last is None or last == this.now:
            continue
        if key.partition(":")[0].removesuffix("?") in looked_at and not key.endswith("?"):
            is_seen = can_tell(key, found, looked_at) or one.last_seen == this.now
            if not is_seen:
                continue
        wait = min(this.rules.remind_after * 2 ** min(one.reminders, 20), this.rules.remind_most)
        if _since(last, this.now) >= wait and this.may_send(one.severity if one.severity == "critical" else "warning"):
            due[key] = one
    if not due or not this.has_room:
        return
    this.send("reminder", *_reminder_text(due, this.now), list(due))
    for key, one in due.items():
        this.change(key, reminders=one.reminders + 1, reminded_at=this.now)


def _after_silence(this: _State, silence: Silence) -> bool:
    """Report at its end what is still open and what has ended meanwhile; return False if that may not be sent yet."""
    still = {key: one for key, one in this.findings.items() if one.recovered_at is None}
    ended = {key: one for key, one in this.findings.items() if one.recovered_at is not None}
    if not still and not ended:
        return True
    worst = max((one.severity for one in still.values()), key=_RANK.__getitem__, default="warning")
    if not this.may_send(worst):
        return False
    escalated = any(one.escalated_at is not None for one in ended.values())
    to = (CHANNELS, ESCALATION) if escalated else (CHANNELS,)
    this.send("silence", *_silence_over_text(silence, still, ended, this.now), [*still, *ended], to=to)
    for key, one in still.items():
        this.change(key, told_at=one.told_at or this.now, told_severity=_worse(one), reminded_at=this.now)
    for key in ended:
        del this.findings[key]
    return True


def _worse(one: Remembered) -> str:
    return max((one.severity, one.told_severity), key=_RANK.__getitem__)


def _waits(one: Remembered) -> bool:
    """Return whether it was reported, continues, and is not acknowledged."""
    return one.told_at is not None and one.recovered_at is None and not one.acknowledged_by


def _since(last: datetime, now: datetime) -> timedelta:
    """Return how long ago that was; a clock that was stepped back makes it no longer, a wrong one does not stop it."""
    return timedelta.max if last - now > _WRONG_CLOCK else now - last


def _news_text(new: _Findings, now: datetime) -> tuple[str, str]:
    """Return title and body about what began or became worse, and how much of it was delayed."""
    title, body = _titled("", new), _body(new, now)
    held = [one.held_since for one in new.values() if one.held_since is not None]
    if held:
        body += f"\n{len(held)} of these delayed since {iso(min(held))}: [alerts] per_hour or quiet"
    return title, body


def _reminder_text(due: _Findings, now: datetime) -> tuple[str, str]:
    most = max(one.reminders for one in due.values()) + 1
    return _titled(f"reminder {most}: ", due), _body(due, now)


def _escalation_text(late: _Findings, now: datetime) -> tuple[str, str]:
    return _titled("not acknowledged: ", late), _body(late, now)


def _recovery_text(ended: _Findings, now: datetime) -> tuple[str, str]:
    lines = [
        f"{key} is over: {printable(one.text)} ({_lasted(one, one.recovered_at or now)})" for key, one in ended.items()
    ]
    first = next(iter(ended.values()))
    more = f" and {len(ended) - 1} more" if len(ended) > 1 else ""
    return f"recovered: {printable(first.text)}{more}", "\n".join(lines)


def _silence_over_text(silence: Silence, still: _Findings, ended: _Findings, now: datetime) -> tuple[str, str]:
    by = f" by {silence.by}" if silence.by else ""
    body = _body(still, now) if still else ""
    if ended:
        body += f"\n\nended meanwhile:\n{_recovery_text(ended, now)[1]}"
    return f"alerts silenced{by} are sent again: {len(still)} open, {len(ended)} ended", body.strip()


def _titled(before: str, about: _Findings) -> str:
    worst = "CRITICAL" if any(one.severity == "critical" for one in about.values()) else "WARNING"
    ordered = sorted(about.values(), key=lambda one: one.severity != "critical")
    more = f" and {len(about) - 1} more" if len(about) > 1 else ""
    return f"{before}{worst}: {printable(ordered[0].text)}{more}"


def _body(about: _Findings, now: datetime) -> str:
    blocks = []
    ordered = sorted(about.items(), key=lambda item: (item[1].severity != "critical", item[0]))
    for number, (key, one) in enumerate(ordered):
        lines = [f"{one.severity.upper()} {key}, {_lasted(one, now)}: {printable(one.text)}"]
        if number < _WHOLE:
            lines += [f"  {printable(said)}" for said in one.evidence]
            lines += [f"  do: {printable(one.todo)}"] if one.todo else []
            if one.acknowledged_by:
                lines.append(f"  {one.acknowledged_by} works on it")
        blocks.append("\n".join(lines))
    return "\n".join(blocks) + "\n\nopsctl alerts ack KEY stops the reminders for all recipients"


def _lasted(one: Remembered, until: datetime) -> str:
    return f"since {iso(one.since)}, {format_duration((until - one.since).total_seconds())}"
