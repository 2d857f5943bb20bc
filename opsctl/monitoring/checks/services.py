"""Checks of what looks after the run: the pseudo-cron, its jobs, the alert channels."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import timedelta

from opsctl.monitoring.check import Settings, check
from opsctl.monitoring.finding import Finding, Severity, critical, finding, length_words, since_words, warning
from opsctl.monitoring.snapshot import Part, Snapshot

#: cron: periods from one tick to the next, as one may have to wait in the queue.
LATE = 2.0
#: cron: a period of seconds, in a trial, is no time for Slurm.
_LEAST = timedelta(seconds=30)
#: cron_jobs: failures in a row of a job that runs again within the hour, and of one that does not.
_HOURLY, _DAILY = 2, 1
_WORDS = {"hanging": "hangs", "missing": "is missing", "lost": "was started, and its result is unknown"}
#: channels: failing for so long is a finding, as a mail server that restarts is back by then; for so long is critical.
_FAILING, _FAILING_LONG = timedelta(minutes=45), timedelta(days=1)


def _cron_problem(snapshot: Snapshot) -> str:
    return snapshot.cron.problem if snapshot.cron is not None else ""


@check(Part.CRON, blind=_cron_problem, is_shared=True)
def cron(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check that the scheduler (pseudo-cron) still runs.

    1: a user has stopped it. 2: its last tick began more than two periods ago. 3: its state cannot be read.
    """
    seen = snapshot.cron
    if seen is None:
        return
    beat, period = seen.heartbeat_at, timedelta(seconds=seen.period_s)
    if not seen.is_started:
        if beat is not None:
            yield warning(
                f"the cron in {seen.folder} is stopped: nothing watches this run, nor submits for it",
                since=beat,
                evidence=(f"its last tick was {beat.astimezone().isoformat(timespec='minutes')}",),
                todo=f"opsctl cron start{seen.option}",
            )
        return
    expected = beat + period if beat is not None else seen.next_due_at
    if expected is None or snapshot.now - expected <= max(_LEAST, (LATE - 1.0) * period):
        return
    last = "has never ticked" if beat is None else f"has not ticked for {length_words(snapshot.now - beat)}"
    yield critical(
        f"the cron in {seen.folder} {last}, and should every {length_words(seen.period_s)}",
        alert=settings.team,
        since=expected,
        evidence=(
            f"a tick was due {since_words(expected)}",
            f"carried by {seen.carried_by}" if seen.carried_by else "",
        ),
        todo=f"opsctl cron status{seen.option}; opsctl cron start{seen.option}",
    )


@check(Part.CRON, blind=_cron_problem, is_shared=True)
def cron_jobs(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that the scheduler's jobs succeed.

    1: a job has failed twice in a row, a daily one once; or it hangs, is missing, or its result is not known.
    """
    if snapshot.cron is None or not snapshot.cron.is_started:
        return
    option = snapshot.cron.option
    for job in snapshot.cron.jobs:
        words = _WORDS.get(job.state)
        if job.failures >= (_DAILY if job.name.startswith("daily/") else _HOURLY):
            words = f"has failed {job.failures} times in a row" if job.failures > 1 else "has failed"
        if words is not None:
            yield warning(
                f"cron job {job.name} {words}{f': {job.detail}' if job.detail else ''}",
                job.name,
                since=job.since,
                evidence=(f"{job.name} {job.state} {since_words(job.since)}" if job.since else "",),
                todo=f"opsctl cron logs {job.name}{option}; opsctl cron run {job.name}{option}",
            )


@check(Part.CHANNELS)
def channels(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that alerts are delivered.

    1: a channel has failed for 45 minutes or longer, or has dropped a message. 2: it has failed for a day, or every
    channel fails.
    """
    failing = [
        (one, one.failing_since)
        for one in snapshot.channels
        if one.failing_since is not None and snapshot.now - one.failing_since >= _FAILING
    ]
    is_all = len(failing) == len(snapshot.channels)
    for one, since in failing:
        length = snapshot.now - since
        yield finding(
            Severity.CRITICAL if is_all or length >= _FAILING_LONG else Severity.WARNING,
            f"no alert can be sent to {one.name}",
            one.name,
            since=since,
            evidence=(f"{one.waiting} messages wait for it", one.detail, "no other channel works" if is_all else ""),
            todo="opsctl alerts test; unsent alerts are sent when it works again",
        )
    for one in snapshot.channels:
        if one.dropped and (one, one.failing_since) not in failing:
            number = "1 alert" if one.dropped == 1 else f"{one.dropped} alerts"
            yield warning(
                f"{number} did not get through {one.name} and will not be sent there again",
                one.name,
                evidence=(one.detail,),
                todo=f"opsctl alerts list --all; then opsctl alerts ack channels:{shlex.quote(one.name)}",
            )
