"""Closing runs that could not do it themselves: what Slurm killed, what a lost node took along, what nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.files.state_files import locked, read_text
from opsctl.core.timestamps import now
from opsctl.jobs.scheduler.context import Cron
from opsctl.jobs.scheduler.directives import own_directives
from opsctl.jobs.scheduler.starting import LOCK_WAIT_S, ended
from opsctl.run.render.scheduler import name_and_folder
from opsctl.run.state.scheduler import (
    CronComment,
    CronRun,
    RunEvent,
    RunState,
    append_run,
    parse_cron_comment,
    read_runs,
)
from opsctl.slurm.job_match import Match, Sent, match, sent_about
from opsctl.slurm.states import End
from opsctl.slurm.types import Job, JobEnd, slurms_word

#: How long a run that is on record may be on its way to Slurm.
ON_ITS_WAY = timedelta(seconds=60)
#: After its limit a run that Slurm hides from us is given up.
HIDDEN_FOR = timedelta(hours=1)
_STATES: dict[End, RunState] = {
    End.TIME_LIMIT: "timeout",
    End.CANCELLED: "cancelled",
    End.PREEMPTED: "cancelled",
    End.NODE_FAILURE: "failed",
    End.OUT_OF_MEMORY: "failed",
}


def settle(cron: Cron) -> list[CronRun]:
    """Close what has ended, by Slurm's word; the newest runs as they are then.

    The queue is looked at before the records, so that what ends meanwhile is on record. Raises SlurmError, OSError.
    """
    looked_at = now()
    runs = read_runs(cron.paths)
    if not any(run.is_open for run in runs):
        return runs
    queue = cron.client.jobs()
    runs = read_runs(cron.paths)
    there = _runs_in(queue)
    gone = [run for run in runs if run.is_open and run.run not in there]
    if not gone:
        return runs
    told = cron.client.ends([run.job_id for run in gone if run.job_id])
    by_id = {run.job_id: run for run in gone}
    ends = {one: end for one, end in told.items() if one in by_id and _is_of(cron, by_id[one], end)}
    unknown = [run.job_id for run in gone if run.job_id and run.job_id not in ends]
    there = _runs_in(cron.client.jobs(job_ids=unknown)) if unknown else {}
    hidden = _hides(cron, gone)
    found = [(run, said) for run in gone if run.run not in there and (said := _end(run, ends, looked_at, hidden))]
    with locked(cron.paths.folder, cron.paths.lock, LOCK_WAIT_S, "close the runs that have ended"):
        still_open = {run.run for run in read_runs(cron.paths) if run.is_open}
        for run, event in found:
            if run.run in still_open:
                append_run(cron.paths, event)
    return read_runs(cron.paths)


def _runs_in(queue: Sequence[Job]) -> dict[str, Job]:
    """Run id -> its job. Anybody may write a comment; to be believed gone, no job at all may carry it."""
    comments = ((parse_cron_comment(job.comment), job) for job in queue)
    return {comment.value: job for comment, job in comments if comment and comment.kind == "run"}


def _is_of(cron: Cron, run: CronRun, end: JobEnd) -> bool:
    """Whether an end that Slurm tells of a run's job id may be that run's, and not another job's that got the id."""
    try:
        text = read_text(cron.paths.folder, cron.paths.text(run.run)) or ""
        name, folder = name_and_folder(run.job, own_directives(text))
    except (OSError, OpsctlError):  # its program is gone
        name = folder = ""
    said = parse_cron_comment(end.comment)
    comment = CronComment(said.token if said else "", "run", run.run)
    sent = Sent(str(comment), run.by, name, folder, *sent_about(run.asked_at))
    return match(end, sent) is not Match.NOT_OURS


def _hides(cron: Cron, gone: Sequence[CronRun]) -> bool:
    """Whether some of `gone` may only be hidden from us."""
    if all(run.by == account_name() for run in gone):
        return False
    try:
        return cron.client.hides_others_jobs()
    except SlurmError:
        return True


def _end(run: CronRun, ends: dict[int, JobEnd], at: datetime, hidden: bool) -> RunEvent | None:
    """The event that closes a run which is not in the queue; None while that is too early."""
    end = ends.get(run.job_id)
    if end is not None:
        word = slurms_word(end)
        state = _STATES[word.end] if word.end is not None else "done" if word.is_success else "failed"
        return ended(run, state, at, word.said, word.exit_code)
    since = run.began_at or run.asked_at
    if hidden and run.by != account_name() and at - since < timedelta(seconds=run.limit_s) + HIDDEN_FOR:
        return None
    if not run.job_id and at - run.asked_at < ON_ITS_WAY:
        return None
    why = "Slurm does not know it any more" if run.job_id else "nobody knows whether Slurm ever had it"
    return ended(run, "lost", at, why)
