"""Checks of the checkpoints: the last one is usable, recent, and copied to its destinations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from opsctl.monitoring.check import Settings, check
from opsctl.monitoring.finding import Finding, Severity, critical, finding, length_words, since_words, warning
from opsctl.monitoring.snapshot import FaultyCheckpoint, LostCopy, Part, Snapshot
from opsctl.run.logs.measurements import START_MOST_S
from opsctl.slurm.states import State

#: checkpoint_age: factor and number of saves that a checkpoint may be late by, and the least.
_MORE, _SAVES, _LEAST = 1.1, 2, timedelta(minutes=5)
#: backups are made every day: what has missed two of them has fallen behind.
_OVERDUE = timedelta(days=2)
#: hub_sync: three of its periods; checkpoints are sent daily, the rest hourly.
_HUB_LATE = {"checkpoints": 3 * timedelta(days=1)}
_HUB_LATE_OTHERS = 3 * timedelta(hours=1)


@check(Part.QUEUE | Part.PROGRESS, can_do_without=Part.QUEUE)
def checkpoints(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that the next task can find its checkpoint.

    2: `latest`, or the manifest that it names, is missing or damaged, so tasks refuse to start. 1: the same while a
    training runs whose next save makes a new one. A latest checkpoint that is not finite (`--save-non-finite`) counts
    as damaged.
    """
    problem, latest = snapshot.checkpoint_problem, snapshot.checkpoint
    if problem is None and latest is not None and latest.not_finite:
        problem = f"the latest checkpoint, iteration {latest.iteration}'s, is not finite: {latest.not_finite}"
    if problem is not None:
        severity = Severity.CRITICAL if snapshot.running is None else Severity.WARNING
        yield finding(severity, problem, todo="opsctl checkpoints list; opsctl checkpoints repoint")


@check(Part.QUEUE | Part.PROGRESS | Part.LOG, blind=lambda snapshot: snapshot.checkpoint_problem or "")
def checkpoint_age(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check that the running training saves checkpoints.

    1: the last checkpoint is older than `[watch] checkpoint_most`; or the newest save failed. Without the setting the
    limit is the usual time of the iterations between two checkpoints, with an evaluation, two saves and a tenth more.
    2: twice as old; or the newest save was refused because weights, optimizer states or the loss are not finite. Only
    the time in which the training ran counts.
    """
    job, failed = snapshot.running, snapshot.measured.failed_save
    if snapshot.is_finished:
        return
    started_at = job.started_at if job is not None and job.state == State.RUNNING else None
    if started_at is not None:
        yield from _late(snapshot, settings, started_at)
    # A run that has just ended because of it is still in danger: the next start may meet the same.
    if started_at is not None or (failed is not None and failed.not_finite):
        yield from _failed_save(snapshot)


def _failed_save(snapshot: Snapshot) -> Iterator[Finding]:
    failed, last = snapshot.measured.failed_save, snapshot.checkpoint
    if failed is None or (last is not None and last.iteration >= failed.iteration):
        return
    subject, latest = f"iteration {failed.iteration}", "no checkpoint is complete yet"
    if last:
        latest = f"iteration {last.iteration}'s is the last one"
    if failed.not_finite:
        yield critical(
            f"the state of {subject} was not saved: {failed.why}; {latest}",
            subject,
            evidence=("a start resumes from the last finite checkpoint, and trains the iterations after it again",),
            todo="opsctl triage; if it repeats: skip the data (train_range_to_skip) or lower the learning rate",
        )
    else:
        yield warning(
            f"the checkpoint of {subject} could not be written: {failed.why}; {latest}",
            subject,
            evidence=("the next save holds up the training until it is written, and ends it where it fails too",),
            todo="is there space: opsctl watch filesystem; once there is: opsctl request save",
        )


def _late(snapshot: Snapshot, settings: Settings, started_at: datetime) -> Iterator[Finding]:
    limit = _longest_wait(snapshot, settings)
    if limit is None or snapshot.checkpoint_problem is not None:
        return
    last, saved_at = snapshot.checkpoint, snapshot.checkpoint_at
    is_of_this_task = saved_at is not None and saved_at > started_at
    since = saved_at if saved_at is not None and is_of_this_task else started_at
    if not is_of_this_task:
        limit += timedelta(seconds=START_MOST_S)
    age = snapshot.now - since
    if age < limit:
        return
    logged = snapshot.measured.last_iteration
    named = f"the last checkpoint is iteration {last.iteration}'s" if last else "there is no checkpoint yet"
    yield finding(
        Severity.CRITICAL if age >= 2 * limit else Severity.WARNING,
        f"{named}, and it has trained for {length_words(age)} since without another one",
        since=since + limit,
        evidence=(
            f"more than {length_words(limit)} is too long here",
            f"iteration {logged.iteration} is logged" if logged else "",
            settings.saves.words() if settings.saves else "",
        ),
        todo="see why a save failed: opsctl logs; check the free space: opsctl watch filesystem; opsctl request save",
    )


def _longest_wait(snapshot: Snapshot, settings: Settings) -> timedelta | None:
    """Return how long it may train without a checkpoint; None: not known."""
    most_s = settings.seconds_of("checkpoint_most")
    if most_s is not None:
        return timedelta(seconds=most_s)
    measured, expect = snapshot.measured, settings.expect
    iteration_s = measured.seconds_per_iteration or expect.seconds_per_iteration
    reached = snapshot.checkpoint.iteration if snapshot.checkpoint else 0
    iterations = settings.saves.longest_wait_after(reached) if settings.saves else None
    if not iteration_s or iterations is None:
        return None
    evaluation_s = measured.longest_evaluation_seconds or expect.evaluation_seconds or 0.0
    save_s = measured.longest_save_seconds or expect.save_seconds or 0.0
    return _LEAST + timedelta(seconds=_MORE * iterations * iteration_s + evaluation_s + _SAVES * save_s)


@check(Part.FILES | Part.QUEUE | Part.LEASE, can_do_without=Part.QUEUE | Part.LEASE)
def checkpoint_files(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """Check that the newest checkpoints have all files.

    Damage that the last `opsctl checkpoints verify` found counts too.

    2: the checkpoint from which the next task resumes is damaged. 1: another one is.
    """
    return [_faulty(one) for one in snapshot.faulty if not (one.is_leftover and _may_be_saving(snapshot, one))]


def _faulty(one: FaultyCheckpoint) -> Finding:
    if one.is_leftover:
        text = f"{one.name} is what a save left that never finished: {one.fault}"
        todo = "no task resumes from it; the next save removes it. Check that there is space: opsctl watch filesystem"
        return warning(text, one.name, since=one.changed_at, todo=todo)
    todo = "opsctl checkpoints list; no task resumes from it, and its copies are useless"
    if one.is_latest:
        todo = "opsctl checkpoints list; opsctl checkpoints repoint to a whole one"
    return finding(
        Severity.CRITICAL if one.is_latest else Severity.WARNING,
        f"checkpoint {one.name}{', the latest,' if one.is_latest else ''} is not whole: {one.fault}",
        one.name,
        since=one.changed_at,
        evidence=(f"{one.name}: {one.fault}",),
        todo=todo,
    )


def _may_be_saving(snapshot: Snapshot, one: FaultyCheckpoint) -> bool:
    """Return whether a running task may be writing it; so it may where what runs cannot be seen."""
    job = snapshot.running
    if snapshot.blind is not None or snapshot.unseen or snapshot.writer_elsewhere is not None:
        return True
    if job is None or one.changed_at is None:
        return job is not None
    return job.started_at is None or one.changed_at >= job.started_at


@check(Part.BACKUPS)
def backups(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that the backups of `[backup]` are intact.

    1: a selected checkpoint was saved more than two days ago and is not verified in the backup; or a copy was found
    missing or damaged there; or the selected data sets were not verified for two days or were found missing. 2: the
    missing or damaged copy was the last one.
    """
    for copies in snapshot.copies:
        if copies.lost:  # one stands for all
            first = min(copies.lost, key=lambda one: one.is_here or one.is_elsewhere)
            others = f" (and {len(copies.lost) - 1} more)" if len(copies.lost) > 1 else ""
            yield _lost(first, others, copies.to, "lost", "opsctl checkpoints backup sends it again")
        if copies.data_lost is not None:
            yield _lost(copies.data_lost, "", copies.to, "data lost", "opsctl backup --data sends them again")
        late = [one for one in copies.overdue if snapshot.now - one.saved_at > _OVERDUE]
        if late:
            oldest = min(late, key=lambda one: one.saved_at)
            others = f" and {len(late) - 1} more" if len(late) > 1 else ""
            yield warning(
                f"{oldest.name}{others} should be backed up at {copies.to} and {'are' if others else 'is'} not",
                copies.to,
                since=oldest.saved_at,
                evidence=(f"{oldest.name} was saved {length_words(snapshot.now - oldest.saved_at)} ago",),
                todo="see why: opsctl checkpoints backup; see if checkpoint-backup runs: opsctl cron status",
            )
        since = copies.data_wanted_since
        if since is not None and snapshot.now - since > _OVERDUE:
            age = length_words(snapshot.now - since)
            yield warning(
                f"the data sets should be backed up at {copies.to} and are not",
                f"{copies.to} data",
                since=since,
                evidence=(f"the revision that wants them there was published {age} ago",),
                todo="see why: opsctl backup; see if checkpoint-backup runs: opsctl cron status",
            )


def _lost(one: LostCopy, others: str, to: str, subject: str, remedy: str) -> Finding:
    is_all = not (one.is_here or one.is_elsewhere)
    elsewhere = "find another copy: opsctl backup list; read the copies again: opsctl backup verify"
    return finding(
        Severity.CRITICAL if is_all else Severity.WARNING,
        f"the backup of {one.name} at {to} no longer counts{others}",
        f"{to} {subject}",
        evidence=(one.why, f"{one.name}: whole nowhere else, as the ledger has it" if is_all else ""),
        todo=remedy if one.is_here else elsewhere,
    )


@check(Part.HUB)
def hub_sync(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that the selected files reach the hub.

    1: files of a kind that `[hub]` names wait for three syncs. Syncs are hourly, of checkpoints daily.
    """
    for unsent in snapshot.unsent:
        limit = _HUB_LATE.get(unsent.kind, _HUB_LATE_OTHERS)
        if snapshot.now - unsent.since >= limit:
            what = unsent.kind if unsent.kind == "checkpoints" else f"files of {unsent.kind}"
            last = unsent.last_sent_at
            yield warning(
                f"{what} have waited for the hub for {length_words(snapshot.now - unsent.since)}",
                unsent.kind,
                since=unsent.since + limit,
                evidence=(
                    f"{unsent.files} to be sent, such as {unsent.example}",
                    "none was ever sent" if last is None else f"nothing was sent {since_words(last)}",
                ),
                todo=f"see why: opsctl hub sync {unsent.kind}; opsctl hub check; opsctl cron status",
            )
