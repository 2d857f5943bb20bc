"""Checks of the run's records: its place, its writer, its revision, its run file, its kill switch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import timedelta

from opsctl.monitoring.check import Settings, check
from opsctl.monitoring.finding import Finding, Severity, critical, finding, length_words, warning
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.state.identity import Standing

#: kill_switch: triggered for so long, it may have been forgotten.
_FORGOTTEN = timedelta(days=1)


@check(Part.PROGRESS)
def revision(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that the tasks can read their revision.

    2: the newest revision is damaged, and tasks that start now refuse it.
    """
    if snapshot.revision_problem is not None:
        yield critical(f"no task can start: {snapshot.revision_problem}", todo="opsctl revise")


@check(Part.RUN_FILE)
def unpublished(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that the run file is published.

    1: it was edited and not published, or it cannot be published.
    """
    published = snapshot.published
    if published is None or not (published.problem or published.differs):
        return
    text = "the run file was edited and is not published: a submit publishes the edit"
    todo = "ask its author; opsctl revise publishes it for the queued jobs"
    if published.problem:
        text = f"the run file was edited and cannot be published: {published.problem}"
        todo = "see what is wrong: opsctl plan; then opsctl revise"
    differs = f"differs in {', '.join(published.differs)}" if published.differs else ""
    evidence = (f"{published.name}, published by {published.by}, is what tasks read", differs)
    yield warning(text, evidence=evidence, todo=todo)


@check(Part.QUEUE | Part.PROGRESS, can_do_without=Part.QUEUE | Part.PROGRESS)
def identity(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that the run is in the folder its tasks use.

    1: this is a copy, or queued tasks use the folder from which it was moved.
    """
    found = snapshot.whereabouts
    if found is None:
        return
    here, is_what = found.here, found.place.describe()
    if found.place.standing is Standing.COPY:
        remedy, todo = "opsctl submit makes it a new run", "opsctl submit"
        if snapshot.is_finished:  # then a submit is refused
            remedy = "it is finished, so there is nothing to submit"
            todo = "to train it further, raise the length of the training in the run file; opsctl submit"
        yield warning(f"{here} is {is_what}; {remedy}", "copy", todo=todo)
        return
    if found.place.standing is Standing.UNCLEAR:
        yield warning(f"{here} is {is_what}", "unclear", todo="opsctl submit --dry-run")
    for folder in dict.fromkeys(folder for folder, _ in found.elsewhere):
        tasks = ", ".join(job.display_id for where, job in found.elsewhere if where == folder)
        link = shlex.join(["ln", "-s", str(here), folder])
        text = f"{tasks} was submitted from {folder}, and starts there"
        yield warning(text, folder, todo=f"{link}; or opsctl revise --resubmit")


@check(Part.QUEUE | Part.LEASE)
def lease(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that only one live job writes to this run.

    1: a process trains it that the queue does not show, or the heartbeat of the writer has stopped. 2: two processes
    write to it.
    """
    holder, age_s = snapshot.lease.holder, snapshot.lease.age_s
    if holder is None or snapshot.blind is not None:
        return
    who = f"{holder.named()} (lease {holder.number})"
    if snapshot.lease.is_silent and age_s is not None and any(job.job_id == holder.job_id for job in snapshot.jobs):
        text = f"the heartbeat of {who} stopped {age_s // 60:.0f} min ago: another task may take over"
        yield warning(text, "silent", todo="opsctl logs; opsctl attempts")
    elif snapshot.writer_elsewhere is None:
        return
    elif snapshot.running is not None:
        text = f"a second writer next to job {snapshot.running.display_id}: {who}, whose heartbeat continues"
        yield critical(text, "two", todo=f"opsctl attempts; ask {holder.user or who}")
    else:
        text = f"{who} trains this run, which the queue does not show here"
        yield warning(text, "unseen", todo="opsctl attempts; opsctl status --cluster NAME")


@check(
    Part.KILL_SWITCH | Part.PROGRESS,
    can_do_without=Part.PROGRESS,
    blind=lambda snapshot: "the kill switch cannot be read" if snapshot.kill_switch is None else "",
)
def kill_switch(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check whether the kill switch is triggered.

    1: it is. 2: it has been for a day, and the training is not finished. It may have been forgotten.
    """
    switch = snapshot.kill_switch
    if switch is None or not switch.is_triggered:
        return
    # A person who writes the file by hand may leave out the zone, and then the time is not known.
    since = switch.at if switch.at is not None and switch.at.tzinfo is not None else None
    is_forgotten = since is not None and snapshot.now - since >= _FORGOTTEN and not snapshot.is_finished
    yield finding(
        Severity.CRITICAL if is_forgotten else Severity.WARNING,
        f"the kill switch is triggered {switch.describe()}: tasks save and exit while it exists",
        since=since,
        evidence=(f"{switch.path} is there", f"for {length_words(snapshot.now - since)}" if since else ""),
        todo="opsctl kill-switch deactivate, then opsctl submit if nothing is queued",
    )
