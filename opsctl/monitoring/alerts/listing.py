"""The output of `opsctl alerts`: open alerts, waiting messages per channel, and the result of a test."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.timestamps import iso
from opsctl.monitoring.alerts.delivery import Drained
from opsctl.monitoring.finding import printed
from opsctl.run.state import alert_log
from opsctl.run.state.alert_log import Event, Message
from opsctl.run.state.alerts import Memory
from opsctl.slurm.durations import format_duration
from trainer.formats.json_text import Moment

_WORDS = {
    "sent": "sent",
    "failed": "not sent",
    "refused": "refused",
    "unknown": "unknown whether it arrived",
    "disk": "not tried",
}


class PrintedAlert(Struct, frozen=True, kw_only=True):
    """A finding that is open."""

    key: Annotated[str, Meta(description="The finding's key: check, or check:subject.")]
    severity: Annotated[str, Meta(description="`warning`, `critical` or `unknown`: the check cannot see.")]
    since: Annotated[Moment, Meta(description="Time since when it exists, if known.")]
    last_seen: Annotated[Moment, Meta(description="When a check last found it.")]
    text: Annotated[str, Meta(description="The finding in words.")]
    todo: Annotated[str | None, Meta(description="The next command or step.")]
    told_at: Annotated[Moment | None, Meta(description="When it was last sent as new; null: not sent yet.")]
    reminders: Annotated[int, Meta(description="Number of reminders.")]
    escalated_at: Annotated[Moment | None, Meta(description="When it was escalated.")]
    acknowledged_by: Annotated[str | None, Meta(description="The user who acknowledged it.")]
    acknowledged_at: Annotated[Moment | None, Meta(description="Since when they do.")]
    acknowledged_why: Annotated[str | None, Meta(description="Reason of the acknowledgement.")]


class PrintedChannel(Struct, frozen=True, kw_only=True):
    """An alert channel, by its name without a secret."""

    name: Annotated[str, Meta(description="The channel's name.")]
    failing_since: Annotated[Moment | None, Meta(description="Since when it fails; null: it does not.")]
    detail: Annotated[str | None, Meta(description="Why it failed last.")]
    waiting: Annotated[int, Meta(description="Messages that it has not taken yet.")]
    dropped: Annotated[int, Meta(description="Recent messages that it never took, until acknowledged.")]
    waiting_since: Annotated[Moment | None, Meta(description="When the oldest of them was made.")]


class PrintedSilence(Struct, frozen=True, kw_only=True):
    """A silence: no messages are sent until its end."""

    until: Annotated[Moment, Meta(description="Until then.")]
    by: Annotated[str | None, Meta(description="User who asked for the silence.")]
    why: Annotated[str | None, Meta(description="Why they did.")]


class PrintedMessage(Struct, frozen=True, kw_only=True):
    """A message that was made."""

    id: Annotated[str, Meta(description="Its id, which is also in the sent message.")]
    kind: Annotated[str, Meta(description="`new`, `reminder`, `recovery`, `escalation`, `silence`, `handed-over`.")]
    at: Annotated[Moment, Meta(description="When it was made.")]
    title: Annotated[str, Meta(description="Its text.")]
    keys: Annotated[tuple[str, ...], Meta(description="Of which findings.")]
    sent_to: Annotated[tuple[str, ...], Meta(description="Channels that have it.")]
    dropped_by: Annotated[tuple[str, ...], Meta(description="Channels that refused it for good.")]


class PrintedAlerts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run's alerts."""

    open: Annotated[tuple[PrintedAlert, ...], Meta(description="Open findings, worst first.")]
    channels: Annotated[tuple[PrintedChannel, ...], Meta(description="Every channel of the watching user.")]
    silence: Annotated[PrintedSilence | None, Meta(description="Null: everything is sent.")]
    messages: Annotated[tuple[PrintedMessage, ...] | None, Meta(description="All messages, oldest first; `--all`.")] = (
        None
    )


class PrintedSending(Struct, frozen=True, kw_only=True):
    """The result of sending on one channel."""

    channel: Annotated[str, Meta(description="The channel's name.")]
    result: Annotated[str, Meta(description="`sent`, `failed`, `refused`, `unknown`, `busy`, `disk` or `nothing`.")]
    why: Annotated[str | None, Meta(description="Why it was not sent.")]


def printed_alerts(memory: Memory, lines: Sequence[Event], now: datetime, with_messages: bool) -> PrintedAlerts:
    """Return the alerts as printed with `--json`."""
    silence = memory.silence if memory.silence is not None and now < memory.silence.until else None
    found = [(key, one) for key, one in memory.findings.items() if one.recovered_at is None]
    found.sort(key=lambda item: (item[1].severity != "critical", item[1].since))
    return PrintedAlerts(
        open=tuple(printed(PrintedAlert, one, key=key) for key, one in found),
        channels=tuple(printed(PrintedChannel, one) for one in alert_log.channels_seen(lines, now)),
        silence=printed(PrintedSilence, silence) if silence else None,
        messages=tuple(_message(one, lines) for one in alert_log.messages(lines)) if with_messages else None,
    )


def screen(alerts: PrintedAlerts, now: datetime) -> list[str]:
    """Return the same as lines for people."""
    lines = []
    if alerts.silence:
        by = f" by {alerts.silence.by}" if alerts.silence.by else ""
        why = f": {alerts.silence.why}" if alerts.silence.why else ""
        lines.append(f"silent until {iso(alerts.silence.until)}{by}{why}")
    alike: dict[tuple[object, ...], list[PrintedAlert]] = {}
    for alert in alerts.open:  # what blinds many checks is one thing to know
        about = (alert.severity, alert.text, alert.since, alert.told_at, alert.acknowledged_by)
        alike.setdefault(about, []).append(alert)
    for one, *more in alike.values():
        keys = ", ".join(each.key for each in (one, *more))
        lines.append(f"{one.severity.upper():8} {keys}  {_age(one.since, now)}  {one.text}")
        if one.acknowledged_by:
            why = f": {one.acknowledged_why}" if one.acknowledged_why else ""
            lines.append(f"         {one.acknowledged_by} works on it since {iso(one.acknowledged_at)}{why}")
        elif one.told_at is None:
            lines.append("         not sent yet")
        if one.todo:
            lines.append(f"         do: {one.todo}")
    if not alerts.open:
        lines.append("no open alerts")
    for channel in alerts.channels:
        state = []
        if channel.failing_since:
            state.append(f"failing for {_age(channel.failing_since, now)}: {channel.detail}")
        if channel.waiting and channel.waiting_since:
            state.append(f"{channel.waiting} waiting, the oldest for {_age(channel.waiting_since, now)}")
        if channel.dropped:
            state.append(f"{channel.dropped} dropped ({channel.detail}): opsctl alerts list --all")
        lines.append(f"channel  {channel.name}  {'; '.join(state) or 'ok'}")
    for message in alerts.messages or ():
        to = ", ".join(message.sent_to) or "no channel yet"
        dropped = f"; refused by {', '.join(message.dropped_by)}" if message.dropped_by else ""
        lines.append(f"{iso(message.at)}  {message.id}  {message.kind}: {message.title}  -> {to}{dropped}")
    return lines


def printed_sending(drained: Drained) -> PrintedSending:
    """Return the result of one channel."""
    if drained.problem:
        return PrintedSending(channel=drained.channel, result="failed", why=drained.problem)
    if not drained.reports:
        return PrintedSending(channel=drained.channel, result="nothing", why=None)
    last = drained.reports[-1]
    return PrintedSending(channel=drained.channel, result=last.result, why=last.why or None)


def sending_line(sending: PrintedSending) -> str:
    """Return the same as a line for people."""
    why = f": {sending.why}" if sending.why else ""
    return f"{sending.channel}: {_WORDS.get(sending.result, sending.result)}{why}"


def trial_message(by: str, now: datetime) -> Message:
    """Return the message that `opsctl alerts test` sends."""
    from opsctl.run.state.alerts import made

    body = f"{by} tries this alert channel. Nothing is wrong."
    return made("test", now, f"test by {by}", body, "ok", ())


def _message(one: Message, lines: Sequence[Event]) -> PrintedMessage:
    own = [line for line in lines if line.id == one.id]
    return printed(
        PrintedMessage,
        one,
        sent_to=tuple(line.channel for line in own if line.event == "sent"),
        dropped_by=tuple(line.channel for line in own if line.event == "dropped"),
    )


def _age(since: datetime, now: datetime) -> str:
    return format_duration((now - since).total_seconds())
