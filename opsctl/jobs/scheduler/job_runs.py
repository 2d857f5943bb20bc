"""Runs of the scheduler's jobs: recorded before Slurm is asked, started once, and settled by Slurm's word."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import locked, make_folder, read_text, remove, write_atomically
from opsctl.core.timestamps import iso, now
from opsctl.jobs import tracked_job
from opsctl.jobs.scheduler.context import Cron, Directives, JobFile, needs_internet, own_directives, text_of
from opsctl.jobs.scheduler.grid import latest_claim
from opsctl.jobs.tracked_job import Absent, Answer, TrackedJob, Undecided, ended_state
from opsctl.run.render.scheduler import job_script, name_and_folder
from opsctl.run.state.scheduler import (
    HOUR_S,
    CronComment,
    CronRun,
    RunEvent,
    RunState,
    append_run,
    new_run_id,
    read_chain,
    read_runs,
)
from opsctl.slurm.durations import parse_duration_s
from opsctl.slurm.job_match import Sent, sent_about
from opsctl.slurm.states import End
from opsctl.slurm.types import job_outcome

#: Seconds to wait for the lock. Claims hold it for milliseconds, unless their process hangs.
LOCK_WAIT_S = 20.0
#: After its limit a run that Slurm hides from us is given up.
HIDDEN_FOR = timedelta(hours=1)
_STATES: dict[End, RunState] = {
    End.TIME_LIMIT: "timeout",
    End.CANCELLED: "cancelled",
    End.PREEMPTED: "cancelled",
    End.NODE_FAILURE: "failed",
    End.OUT_OF_MEMORY: "failed",
}


@dataclass(frozen=True)
class Started:
    """The result of starting one job, at a tick or on request."""

    job: str
    run: str = ""
    job_id: int = 0  # 0: nothing was started
    kept: CronRun | None = None  # the run that is still there
    problem: str = ""


def start_job(cron: Cron, file: JobFile, token: str, period_s: int, since: int = 0, due: int = 0) -> Started:
    """Start the job for the tick at `due`, unless one runs already or a tick did from the due time `since` on.

    due: 0 where a person asks. Raises OSError where it cannot be put on record: then nothing was started.
    """
    paths, at = cron.paths, now()
    run = new_run_id(at)
    with locked(paths.folder, paths.lock, LOCK_WAIT_S, f"start {file.name}"):
        own = [one for one in read_runs(paths) if one.job == file.name]
        # One far ahead was started under a wrong clock, and says nothing of now.
        if due and any(since <= one.due <= latest_claim(due, period_s) for one in own):
            return Started(file.name)
        open_one = next((one for one in reversed(own) if one.is_open), None)
        if open_one is not None:
            if due:
                append_run(paths, RunEvent(event="kept", run=open_one.run, job=file.name, at=at, due=due))
            return Started(file.name, kept=open_one)
        asked = RunEvent(event="asked", run=run, job=file.name, at=at, due=due, by=account_name())
        try:
            text, own_lines, limit_s = _read(cron, file)
        except (OSError, OpsctlError) as error:
            return _refused(cron, asked, _why(error), "missing" if isinstance(error, FileNotFoundError) else "refused")
        make_folder(paths.folder, paths.text(run).parent)
        write_atomically(paths.folder, paths.text(run), text)
        append_run(paths, msgspec.structs.replace(asked, limit_s=limit_s))
    comment = str(CronComment(token, "run", run))
    digest = digest_of(text)
    try:
        script = job_script(cron.setting(token, period_s), file.name, own_lines, comment, run, digest)
        job_id = tracked_job.send(cron.client, script, TrackedJob(Sent(comment, asked.by), at))
    except (Undecided, Absent) as error:
        return Started(file.name, run, problem=f"{file.name}: {error}")  # the next tick settles it
    except OpsctlError as error:
        remove(paths.folder, paths.text(run))
        append_run(paths, ended(asked, "refused", now(), str(error)))
        return Started(file.name, run, problem=f"{file.name}: {error}")
    append_run(paths, RunEvent(event="queued", run=run, job=file.name, at=now(), job_id=job_id))
    return Started(file.name, run, job_id)


def start_now(cron: Cron, file: JobFile) -> int:
    """Start a job on request and return its Slurm id. Raises OpsctlError if it is running or cannot be started."""
    chain = read_chain(cron.paths)
    done = start_job(cron, file, chain.token if chain else "0", chain.period_s if chain else HOUR_S)
    if done.kept is not None:
        still = f"job {done.kept.job_id}, submitted at {iso(done.kept.asked_at)}"
        raise OpsctlError(f"{file.name} is {done.kept.state} still ({still}): not started twice")
    if done.problem:
        raise OpsctlError(done.problem)
    return done.job_id


def settle(cron: Cron) -> list[CronRun]:
    """Close the runs that have ended without recording it, by Slurm's word; return the newest runs as they are then.

    Raises SlurmError, OSError.
    """
    paths = cron.paths

    def read_open() -> dict[str, CronRun]:
        return {run.run: run for run in read_runs(paths) if run.is_open}

    if not read_open():
        return read_runs(paths)
    known: dict[str, CronRun] = {}

    def tracked() -> dict[str, TrackedJob]:
        known.update(read_open())
        return {name: _tracked(cron, run) for name, run in known.items()}

    answers = tracked_job.settle(cron.client, tracked)
    with locked(paths.folder, paths.lock, LOCK_WAIT_S, "close the runs that have ended"):
        for name in read_open().keys() & known.keys():
            event = _end(known[name], answers[name])
            if event is not None:
                append_run(paths, event)
    return read_runs(paths)


def _tracked(cron: Cron, run: CronRun) -> TrackedJob:
    """Return the submission of a run. Its comment also has the token of a chain, which is not on its record."""
    try:
        text = read_text(cron.paths.folder, cron.paths.text(run.run)) or ""
        name, folder = name_and_folder(run.job, own_directives(text))
    except (OSError, OpsctlError):  # its program is gone
        name = folder = ""
    sent = Sent(f"opsctl run={run.run}", run.by, name, folder, *sent_about(run.asked_at))
    until = (run.began_at or run.asked_at) + timedelta(seconds=run.limit_s) + HIDDEN_FOR
    return TrackedJob(sent, run.asked_at, run.job_id, until)


def _end(run: CronRun, answer: Answer) -> RunEvent | None:
    """Return the event that closes a run; None where it may still run."""
    if answer.end is not None:
        word = job_outcome(answer.end)
        return ended(run, ended_state(word, _STATES, "done", "failed"), now(), word.words, word.exit_code)
    return ended(run, "lost", now(), answer.lost) if answer.lost else None


def ended(
    run: RunEvent | CronRun, state: str, at: datetime, detail: str = "", exit_code: int | None = None
) -> RunEvent:
    """Return the event that `run` has ended."""
    return RunEvent(event="ended", run=run.run, job=run.job, at=at, state=state, detail=detail, exit_code=exit_code)


def digest_of(text: str) -> str:
    """Tells one program's text from another."""
    return hashlib.sha256(text.encode()).hexdigest()


def _read(cron: Cron, file: JobFile) -> tuple[str, Directives, int]:
    """Return (text, own `#SBATCH` lines, time limit in seconds)."""
    if file.name_problem:
        raise OpsctlError(file.name_problem)
    text = text_of(cron, file)
    own = own_directives(text)
    if needs_internet(text) and cron.internet_partition:
        own.setdefault("partition", cron.internet_partition)
    limit = own.get("time") or cron.table.time
    try:
        return text, own, parse_duration_s(limit)
    except ValueError as error:
        raise OpsctlError(f"#SBATCH --time: {error}") from None


def _refused(cron: Cron, asked: RunEvent, why: str, state: str) -> Started:
    append_run(cron.paths, asked)
    append_run(cron.paths, ended(asked, state, asked.at, why))
    return Started(asked.job, asked.run, problem=f"{asked.job}: {why}")


def _why(error: OSError | OpsctlError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file any more"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
