"""What is to be told now: a pure function of what is remembered, what was found, and the time.

Every finding is told once when it begins or becomes worse, again at growing intervals while nobody acknowledges it,
and once when it ends, but only where it was told. A check that could not see neither ends anything nor reminds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta

import msgspec

from opsctl.monitoring.alerts import message_text
from opsctl.monitoring.check import can_tell
from opsctl.monitoring.finding import Finding, Severity
from opsctl.run.state.alert_log import CHANNELS, ESCALATION, Message
from opsctl.run.state.alerts import Memory, Remembered, Silence, made

_HOUR = timedelta(hours=1)
#: A check that cannot see is worth a message when it stays so; a restart of the controller is not.
BLIND_AFTER = timedelta(hours=1)
#: A moment further ahead than a clock is ever stepped back was written under a wrong clock.
_WRONG_CLOCK = timedelta(hours=26)
#: Looks of two people cross by no more than one takes; a finding seen longer ahead was seen under another clock.
_CROSSING = timedelta(minutes=2)
_RANK = {"": 0, "unknown": 1, "warning": 1, "critical": 2}
_WORDS = {Severity.WARNING: "warning", Severity.CRITICAL: "critical", Severity.UNKNOWN: "unknown"}


@dataclass(frozen=True)
class Rules:
    """[alerts], in numbers."""

    remind_after: timedelta = timedelta(hours=6)
    remind_most: timedelta = timedelta(days=2)
    escalate_after: timedelta | None = timedelta(hours=1)  # None: there is nobody to escalate to
    per_hour: int = 12
    quiet: tuple[time, time] | None = None  # local times of day


@dataclass
class _Pass:
    """One look, while it is being decided."""

    now: datetime
    rules: Rules
    findings: dict[str, Remembered]
    hour: list[datetime]
    messages: list[Message] = field(default_factory=list)

    @property
    def has_room(self) -> bool:
        """Whether one more message that is not critical may be made in this hour."""
        return len(self.hour) < self.rules.per_hour

    @property
    def is_quiet(self) -> bool:
        """Whether only what is critical may be told at this time of day."""
        if self.rules.quiet is None:
            return False
        begin, end = self.rules.quiet
        at = self.now.time().replace(tzinfo=None)
        return begin <= at < end if begin <= end else at >= begin or at < end

    def may_tell(self, severity: str) -> bool:
        """Whether a message of this severity may be made now."""
        return severity == "critical" or (self.has_room and not self.is_quiet)

    def tell(self, kind: str, title: str, body: str, keys: Sequence[str], to: tuple[str, ...] = (CHANNELS,)) -> None:
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
    """What to remember from now on, and what to tell, in the order in which it is to be sent.

    looked_at: names of the checks that ran. now: in the local zone, by whose time of day it is quiet.
    """
    found = list(found)
    hour = [at for at in memory.hour if abs(now - at) < _HOUR]
    this = _Pass(now, rules, dict(memory.findings), hour)
    _take_in(this, found, looked_at)
    silence = memory.silence
    if silence is None or now >= silence.until:
        was_silent, silence = silence, None
        if was_silent is not None and not _after_silence(this, was_silent):
            silence = was_silent  # said when it may be
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


def _take_in(this: _Pass, found: Sequence[Finding], looked_at: Collection[str]) -> None:
    """Remember what was found, and that what is not found any more has ended."""
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
            continue  # somebody has seen it since this look was taken
        has_ended = _sees_again(key, found, looked_at) if key.endswith("?") else can_tell(key, found, looked_at)
        if has_ended and known.told_at is None:
            del this.findings[key]
        elif has_ended:
            this.change(key, recovered_at=this.now)


def _problems(found: Sequence[Finding]) -> dict[str, Finding]:
    """Key -> the worst finding of it; what a check cannot tell has a key of its own, with `?` at its end."""
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
    """Whether the check of what could not be told looked, and could tell."""
    check = key.partition(":")[0].removesuffix("?")
    blind = {f"{one.key}?" for one in found if one.severity is Severity.UNKNOWN}
    return check in looked_at and key not in blind


def _news(this: _Pass) -> None:
    """One message about all that is new, or worse than was told."""
    new = {
        key: one
        for key, one in this.findings.items()
        if one.recovered_at is None
        and _RANK[one.severity] > _RANK[one.told_severity]
        and (one.severity != "unknown" or this.now - one.since >= BLIND_AFTER or one.since > this.now)
    }
    may_all = this.may_tell("warning")
    tellable = {key: one for key, one in new.items() if may_all or one.severity == "critical"}
    for key, one in new.items():
        if key not in tellable and one.held_since is None:
            this.change(key, held_since=this.now)
    if not tellable:
        return
    this.tell("new", *message_text.news(tellable, this.now), list(tellable))
    for key, one in tellable.items():
        this.change(key, told_at=this.now, told_severity=one.severity, reminders=0, reminded_at=None, escalated_at=None)


def _escalations(this: _Pass) -> None:
    """One message to others about what is critical and nobody has acknowledged in time."""
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
        this.tell("escalation", *message_text.escalation(late, this.now), list(late), to=(ESCALATION,))
        for key in late:
            this.change(key, escalated_at=this.now)


def _recoveries(this: _Pass) -> None:
    """One message about all that was told and has ended, also to those to whom it was escalated."""
    ended = {key: one for key, one in this.findings.items() if one.recovered_at is not None}
    tellable = {
        key: one
        for key, one in ended.items()
        if this.has_room and (not this.is_quiet or one.told_severity == "critical")
    }
    escalated = {key: one for key, one in tellable.items() if one.escalated_at is not None}
    others = {key: one for key, one in tellable.items() if key not in escalated}
    for part, to in ((escalated, (CHANNELS, ESCALATION)), (others, (CHANNELS,))):
        if part and this.has_room:
            this.tell("recovery", *message_text.recovery(part, this.now), list(part), to=to)
            for key in part:
                del this.findings[key]


def _reminders(this: _Pass, found: Sequence[Finding], looked_at: Collection[str]) -> None:
    """One message about all that is due again; not about what could not be looked at now."""
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
        if _since(last, this.now) >= wait and this.may_tell(one.severity if one.severity == "critical" else "warning"):
            due[key] = one
    if not due:
        return
    if not this.has_room:
        return
    this.tell("reminder", *message_text.reminder(due, this.now), list(due))
    for key, one in due.items():
        this.change(key, reminders=one.reminders + 1, reminded_at=this.now)


def _after_silence(this: _Pass, silence: Silence) -> bool:
    """Say at its end what is still open and what has ended meanwhile; whether that was possible, or needless."""
    still = {key: one for key, one in this.findings.items() if one.recovered_at is None}
    ended = {key: one for key, one in this.findings.items() if one.recovered_at is not None}
    if not still and not ended:
        return True
    worst = max((one.severity for one in still.values()), key=_RANK.__getitem__, default="warning")
    if not this.may_tell(worst):
        return False
    escalated = any(one.escalated_at is not None for one in ended.values())
    to = (CHANNELS, ESCALATION) if escalated else (CHANNELS,)
    this.tell("silence", *message_text.silence_over(silence, still, ended, this.now), [*still, *ended], to=to)
    for key, one in still.items():
        this.change(key, told_at=one.told_at or this.now, told_severity=_worse(one), reminded_at=this.now)
    for key in ended:
        del this.findings[key]
    return True


def _worse(one: Remembered) -> str:
    return max((one.severity, one.told_severity), key=_RANK.__getitem__)


def _waits(one: Remembered) -> bool:
    """Whether it was told, goes on, and nobody has said that he looks after it."""
    return one.told_at is not None and one.recovered_at is None and not one.acknowledged_by


def _since(last: datetime, now: datetime) -> timedelta:
    """How long ago that was; a clock that was stepped back makes it no longer, one that was wrong does not stop it."""
    return timedelta.max if last - now > _WRONG_CLOCK else now - last
