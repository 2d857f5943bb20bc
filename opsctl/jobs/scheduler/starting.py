"""Starting a job: on record before Slurm is asked, from the text that was read, never twice."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmUnreachable
from opsctl.core.files.state_files import locked, make_folder, remove, write_atomically
from opsctl.core.timestamps import now
from opsctl.jobs.scheduler.context import Cron, JobFile, text_of
from opsctl.jobs.scheduler.directives import Directives, needs_internet, own_directives
from opsctl.jobs.scheduler.grid import latest_claim
from opsctl.run.render.scheduler import job_script
from opsctl.run.state.scheduler import CronComment, CronRun, RunEvent, append_run, new_run_id, read_runs
from opsctl.slurm.durations import parse_duration_s

#: Claims hold the lock for milliseconds; whoever hangs with it is waited for so long, seconds.
LOCK_WAIT_S = 20.0


@dataclass(frozen=True)
class Started:
    """What became of one job at a tick, or when a person asked for it."""

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
        job_id = cron.client.submit(script)
    except SlurmUnreachable as error:
        return Started(file.name, run, problem=f"{file.name}: {error}")  # whether Slurm has it the next tick looks up
    except OpsctlError as error:
        remove(paths.folder, paths.text(run))
        append_run(paths, ended(asked, "refused", now(), str(error)))
        return Started(file.name, run, problem=f"{file.name}: {error}")
    append_run(paths, RunEvent(event="queued", run=run, job=file.name, at=now(), job_id=job_id))
    return Started(file.name, run, job_id)


def ended(
    run: RunEvent | CronRun, state: str, at: datetime, detail: str = "", exit_code: int | None = None
) -> RunEvent:
    """The event that `run` has ended so."""
    return RunEvent(event="ended", run=run.run, job=run.job, at=at, state=state, detail=detail, exit_code=exit_code)


def digest_of(text: str) -> str:
    """Tells one program's text from another."""
    return hashlib.sha256(text.encode()).hexdigest()


def _read(cron: Cron, file: JobFile) -> tuple[str, Directives, int]:
    """(text, own `#SBATCH` lines, seconds that it may take)."""
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
