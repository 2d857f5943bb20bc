"""Is the training in the system?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.pulse import JobWords, job_words
from opsctl.monitoring.snapshot import Part, Snapshot, queue_order
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE, describe
from opsctl.run.logs.pulse import words_of
from opsctl.run.logs.records import Saying

CHECK = "training"
HELP = """Is the training running or scheduled?

0: it runs, waits, or is finished. 1: something held behind it, it is suspended, or a person stopped it on purpose with
the kill switch or opsctl cancel. 2: held, waiting for what can never come, or not there, also if it continued after a
cancel and then died. 3: Slurm does not answer or hides the jobs of others, somebody trains it whom the queue does not
show, or the run was never submitted. Each line also goes into the training log.
"""
#: What to type about a job in trouble, by its form.
_TODO = {
    "held": "scontrol release {job}; of somebody else's: opsctl request release-queued",
    "never": "opsctl revise --resubmit puts another chain in its place; scontrol show job {job}",
    "cannot-start": "scontrol show job {job} says why; then opsctl revise --resubmit",
    "suspended": "scontrol resume {job}, or ask who suspended it",
}


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A finding per job of the run, or one that says why there is none.

    What is held behind a training that runs or can start is a warning; with nothing else in the queue it is critical.
    Of a finished training nothing is critical any more, nor where others may have the job that runs.
    """
    name, checkpoint = settings.name, snapshot.checkpoint
    if snapshot.blind is not None:
        return [_finding(Severity.UNKNOWN, _words(name, "blind", snapshot.blind))]
    words = [job_words(name, job, snapshot.now) for job in sorted(snapshot.jobs, key=queue_order)]
    if snapshot.is_finished and checkpoint is not None:
        reached = f"iteration {checkpoint.iteration}, {checkpoint.consumed_train_samples} samples"
        done = _finding(Severity.OK, _words(name, "finished", reached))
        return [done, *(_finding(Severity.OK, said.text) for said in words)]
    if not words and not snapshot.unseen:
        return [_missing(snapshot, settings)]
    can_go_on = any(said.severity < Severity.CRITICAL for said in words)
    alive = can_go_on or bool(snapshot.unseen)
    findings = []
    if snapshot.unseen and not can_go_on:
        detail = f"{CANNOT_SEE}, {describe(snapshot.unseen)} may be queued or running"
        findings.append(_finding(Severity.UNKNOWN, _words(name, "blind", detail)))
    for said in words:
        if said.severity is Severity.CRITICAL:
            severity = Severity.WARNING if alive else Severity.CRITICAL
            findings.append(_of_job(severity, said, settings.team))
        elif said.severity is Severity.OK:
            findings.append(_finding(said.severity, said.text))
        else:
            findings.append(_of_job(said.severity, said))
    return findings


def _missing(snapshot: Snapshot, settings: Settings) -> Finding:
    """Nobody misses a training that was never submitted, nor can say that it is well, or that one is not finished."""
    unknown = snapshot.revision_problem or snapshot.checkpoint_problem
    if snapshot.writer_elsewhere is not None:
        unknown = f"{snapshot.writer_elsewhere.named()} trains it, which the queue does not show here"
    if unknown is not None:  # it may be finished
        return _finding(Severity.UNKNOWN, _words(settings.name, "blind", unknown))
    if snapshot.stopped_by:
        first = "opsctl kill-switch deactivate; " if snapshot.cancelled is None else ""
        todo = f"{first}opsctl submit, when it is to continue"
        return Finding(CHECK, Severity.WARNING, _words(settings.name, "rests", snapshot.stopped_by), todo=todo)
    if snapshot.was_submitted or snapshot.checkpoint is not None:
        words = _words(settings.name, "absent")
        todo = "opsctl attempts says how the last one ended; opsctl submit"
        evidence = ("squeue has none of the run's jobs",)
        return Finding(CHECK, Severity.CRITICAL, words, settings.team, "absent", evidence=evidence, todo=todo)
    return _finding(Severity.UNKNOWN, _words(settings.name, "unsubmitted"))


def _words(name: str, state: str, detail: str = "") -> str:
    return words_of(Saying(name=name, state=state, detail=detail))


def _finding(severity: Severity, text: str) -> Finding:
    return Finding(CHECK, severity, text)


def _of_job(severity: Severity, said: JobWords, team: str | None = None) -> Finding:
    """About one job, under its form and id: the rest of an array has the array's."""
    evidence = (f"squeue: {said.job.display_id} is {said.job.state}, reason {said.job.reason}",)
    todo = _TODO.get(said.form, "scontrol show job {job}").format(job=said.job.job_id)
    return Finding(CHECK, severity, said.text, team, f"{said.form} {said.job.job_id}", evidence=evidence, todo=todo)


_NEEDS = Part.QUEUE | Part.PROGRESS | Part.LEASE | Part.KILL_SWITCH
#: It says itself what it cannot see, in the watchdog's words.
DETECTOR = Detector(CHECK, find, _NEEDS, HELP, can_do_without=_NEEDS)
