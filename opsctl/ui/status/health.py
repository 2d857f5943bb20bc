"""How those do who look after a run: its cron and its alerts, in a line each where there is something to say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.timestamps import iso, to_the_second
from opsctl.diagnosis.carbon.brief import EnergySeen
from opsctl.diagnosis.goodput.brief import GoodputSeen
from opsctl.jobs.evaluation.brief import EvaluationSeen
from opsctl.monitoring.snapshot import Channel, CronSeen
from opsctl.run.state.alerts import Remembered, Silence
from opsctl.run.state.chains import Cancel, Chain, resting
from opsctl.ui.status.durations import rough, since
from trainer.formats.json_text import Moment

_GOOD = ("done", "running")


@dataclass(frozen=True)
class Desk:
    """What is remembered of a run beside its own records."""

    findings: Mapping[str, Remembered] = field(default_factory=dict)  # those that are open, by key
    silence: Silence | None = None
    cancels: tuple[Cancel, ...] = ()
    problem: str = ""  # why that cannot be read
    evaluation: EvaluationSeen | None = None  # None: nothing was ever to be evaluated, or nobody has looked
    goodput: GoodputSeen | None = None  # None: too little is known, or nobody has looked
    energy: EnergySeen | None = None  # None: nothing is measured, or nobody has looked


class CronJobHealth(Struct, frozen=True, kw_only=True):
    """A job of the cron, as its last run left it."""

    name: Annotated[str, Meta(description="Its name, as `hourly/refill`.")]
    state: Annotated[str, Meta(description="How its last run stands.")]
    failures: Annotated[int, Meta(description="How many of its last runs, in a row, failed.")]
    since: Annotated[Moment | None, Meta(description="When the first of those was.")]
    detail: Annotated[str, Meta(description="What is to be said of it.")]


class CronHealth(Struct, frozen=True, kw_only=True):
    """The cron that looks after the run."""

    folder: Annotated[str, Meta(description="Absolute path of its folder.")]
    started: Annotated[bool, Meta(description="Whether it is started, and not stopped again.")]
    carried_by: Annotated[str, Meta(description="Who carries it, and via what; empty while nobody does.")]
    period_s: Annotated[float, Meta(description="Seconds between two ticks.")]
    heartbeat_at: Annotated[Moment | None, Meta(description="When the last tick was, by the file server.")]
    heartbeat_age_s: Annotated[float | None, Meta(description="Seconds since then.")]
    next_due_at: Annotated[Moment | None, Meta(description="When the next tick is due.")]
    jobs: Annotated[list[CronJobHealth], Meta(description="Its jobs.")]
    problem: Annotated[str | None, Meta(description="Why it cannot be seen.")]


class ChannelHealth(Struct, frozen=True, kw_only=True):
    """An alert channel, by its name without secrets."""

    name: Annotated[str, Meta(description="Its name.")]
    failing_since: Annotated[Moment | None, Meta(description="Since when it takes nothing; null while it does.")]
    detail: Annotated[str, Meta(description="What it answered.")]
    waiting: Annotated[int, Meta(description="Messages that it has not taken yet.")]


class AlertsHealth(Struct, frozen=True, kw_only=True):
    """How the alerts of the run do."""

    channels: Annotated[list[ChannelHealth], Meta(description="The channels that were ever used.")]
    silenced_until: Annotated[Moment | None, Meta(description="Until when nothing is sent; null while all is.")]
    silenced_by: Annotated[str | None, Meta(description="Who said so.")]
    problem: Annotated[str | None, Meta(description="Why what the desk remembers cannot be read.")]


def cron_line(cron: CronSeen | None, now: datetime) -> str:
    """What a person should know of the cron; empty for one that nobody ever started."""
    if cron is None:
        return ""
    if cron.problem:
        return f"cannot be seen: {cron.problem}"
    if not cron.is_started:
        return (
            f"stopped; it was carried by {cron.carried_by}: opsctl cron start{cron.option}" if cron.carried_by else ""
        )
    beat = "no tick yet" if cron.heartbeat_at is None else f"last tick {since(cron.heartbeat_at, now)} ago"
    parts = [f"{beat}, by {cron.carried_by}"]
    if cron.next_due_at is not None:
        left_s = (cron.next_due_at - now).total_seconds()
        parts.append(f"next in {rough(left_s)}" if left_s >= 0 else f"the next is {rough(-left_s)} late")
    for job in cron.jobs:
        if job.state not in _GOOD or job.failures:
            row = f", failed {job.failures} times in a row" if job.failures > 1 else ""
            state = "" if job.state == "failed" and row else f" {job.state}"
            parts.append(f"{job.name}{state or row[1:]}{row if state else ''}{f': {job.detail}' if job.detail else ''}")
    return "; ".join(parts)


def refill_line(chains: Sequence[Chain], desk: Desk) -> str:
    """Why the run is left alone by whoever keeps its queue filled; empty where it is not."""
    cancel = resting(chains, desk.cancels)
    if cancel is None:
        return ""
    return f"paused: {cancel.describe()}; opsctl submit lets it continue"


def alerts_line(channels: Sequence[Channel], desk: Desk, now: datetime) -> str:
    """What a person should know of the alerts; empty while all goes through."""
    parts, silence = [f"cannot be read: {desk.problem}"] if desk.problem else [], desk.silence
    if silence is not None:
        why = f": {silence.why}" if silence.why else ""
        parts.append(f"silenced until {iso(silence.until, 'minutes')} by {silence.by}{why}")
    for one in channels:
        if one.failing_since is not None:
            detail = f": {one.detail}" if one.detail else ""
            waiting = f", {one.waiting} waiting" if one.waiting else ""
            parts.append(f"{one.name} fails for {since(one.failing_since, now)}{waiting}{detail}")
        elif one.waiting:
            parts.append(f"{one.name} has {one.waiting} waiting")
    return "; ".join(parts)


def printed_cron(cron: CronSeen | None, now: datetime) -> CronHealth | None:
    """The cron for programs."""
    if cron is None:
        return None
    beat = cron.heartbeat_at
    return CronHealth(
        folder=cron.folder,
        started=cron.is_started,
        carried_by=cron.carried_by,
        period_s=cron.period_s,
        heartbeat_at=to_the_second(beat),
        heartbeat_age_s=None if beat is None else (now - beat).total_seconds(),
        next_due_at=to_the_second(cron.next_due_at),
        jobs=[
            CronJobHealth(
                name=job.name,
                state=job.state,
                failures=job.failures,
                since=to_the_second(job.since),
                detail=job.detail,
            )
            for job in cron.jobs
        ],
        problem=cron.problem or None,
    )


def printed_alerts(channels: Sequence[Channel], desk: Desk) -> AlertsHealth:
    """The alerts for programs."""
    silence = desk.silence
    return AlertsHealth(
        channels=[
            ChannelHealth(
                name=one.name,
                failing_since=to_the_second(one.failing_since),
                detail=one.detail,
                waiting=one.waiting,
            )
            for one in channels
        ],
        silenced_until=to_the_second(silence.until) if silence is not None else None,
        silenced_by=silence.by if silence is not None else None,
        problem=desk.problem or None,
    )
