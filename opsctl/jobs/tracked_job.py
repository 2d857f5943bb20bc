"""The lifecycle of every job that opsctl submits: record, send, find again, settle.

1. The caller records the intention under its own lock, with words that only this submission has in its Slurm comment.
2. `send` calls sbatch. If the answer is lost, it searches the queue for these words. The exception is the outcome:

   | outcome | what Slurm has | what the caller does with its record |
   |---|---|---|
   | returns the id | the job | writes the id |
   | `Undecided` | unknown | keeps it, for the next `settle` |
   | `Absent` | no job now; the request may still be on its way | keeps the words by which the job would be found |
   | any other SlurmError | no job, now or later | removes it |

3. `settle` compares the open records with the queue, then with accounting. It covers a caller that was killed at any
   moment, and jobs that could not record their own end.

A chain (`control.send_chain`), a background command (`background.submission`), which an evaluation is too, a tick
(`scheduler.chain`) and a scheduled job (`scheduler.job_runs`) each have their own comment, record file and messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from opsctl.core.account import account_name
from opsctl.core.errors import SlurmError, SlurmUnasked, SlurmUnreachable
from opsctl.core.timestamps import now
from opsctl.slurm.client import SlurmClient, SlurmReader
from opsctl.slurm.job_match import Match, Sent, has_words, match
from opsctl.slurm.states import End
from opsctl.slurm.types import Job, JobEnd, JobOutcome

#: How long a recorded job may be on its way to Slurm.
ON_ITS_WAY = timedelta(seconds=60)
State = TypeVar("State", bound=str)


class Undecided(SlurmUnreachable):
    """Slurm stopped answering: it may have the job or not."""


class Absent(SlurmUnreachable):
    """The answer of sbatch was lost, and the queue does not have the job."""


@dataclass(frozen=True)
class TrackedJob:
    """The record of one submission."""

    sent: Sent  # its words in the comment, its owner, and what else identifies it
    asked_at: datetime
    job_id: int = 0  # 0: not known
    believed_until: datetime | None = None  # of another account's job, where Slurm hides those


@dataclass(frozen=True)
class Answer:
    """Slurm's answer about a submission. All fields are empty if it may still be on its way, or is hidden."""

    job: Job | None = None  # its row in the queue
    end: JobEnd | None = None  # how it ended
    lost: str = ""  # why its end is unknown


def send(client: SlurmClient, script: str, job: TrackedJob, what: str = "the job", advice: str = "") -> int:
    """Call sbatch and return the id (an array's for an array); see the module for the exceptions.

    advice: what to type once Slurm answers again.
    """
    try:
        return client.submit(script)
    except SlurmUnasked:
        raise
    except SlurmUnreachable as error:
        try:
            found = find(job, client.jobs(users=[account_name()]))  # everybody's jobs may take longer than is left
        except SlurmUnreachable:
            raise Undecided(
                f"Slurm stopped answering during the submission of {what}: it may or may not be in the queue"
                + (f"; once it answers, {advice}" if advice else "")
            ) from None
        if found is None:
            raise Absent(f"nothing was submitted, the queue does not have it: {error}") from None
        return found.array_job_id


def find(job: TrackedJob, queue: Iterable[Job]) -> Job | None:
    """Return the row of the submission. Any account may write any comment, so that the owner counts too. Pure."""
    sent = job.sent
    return next((row for row in queue if row.user == sent.user and has_words(row.comment, sent.comment)), None)


def settle(
    client: SlurmClient, read_open: Callable[[], Mapping[str, TrackedJob]], users: Sequence[str] | None = None
) -> dict[str, Answer]:
    """Ask Slurm about the jobs of `read_open`, which has a key for each.

    The queue is read before the records, so that a job that records its own end meanwhile is not judged. users: the
    owners, None for everybody. Raises SlurmError, and what `read_open` raises.
    """
    at, queue = now(), client.jobs(users=users)
    jobs = read_open()
    answers = {key: Answer(find(job, queue)) for key, job in jobs.items()}
    gone = {key: job for key, job in jobs.items() if answers[key].job is None}
    if not gone:
        return answers
    ends = client.ends([job.job_id for job in gone.values() if job.job_id])
    unknown = {}
    for key, job in gone.items():
        end = ends.get(job.job_id)
        if end is not None and match(end, job.sent) is not Match.NOT_OURS:
            answers[key] = Answer(end=end)
        else:
            unknown[key] = job
    ids = [job.job_id for job in unknown.values() if job.job_id]
    late = client.jobs(job_ids=ids) if ids else []
    for key, job in unknown.items():
        row = find(job, late)
        is_possible = row is None and (_is_on_its_way(job, at) or may_be_hidden(job, client, at))
        answers[key] = Answer(row, lost="" if row is not None or is_possible else _why_lost(job))
    return answers


def may_be_hidden(job: TrackedJob, client: SlurmReader, at: datetime) -> bool:
    """Return whether the queue may have the job and not show it to this account."""
    if job.sent.user == account_name() or job.believed_until is None or at >= job.believed_until:
        return False
    try:
        return client.hides_others_jobs()
    except SlurmError:
        return True


def ended_state(word: JobOutcome, states: Mapping[End, State], done: State, failed: State) -> State:
    """Return the state of a job that ended so. states: of the ends that are Slurm's doing."""
    return states[word.end] if word.end is not None else done if word.is_success else failed


def _is_on_its_way(job: TrackedJob, at: datetime) -> bool:
    return not job.job_id and at - job.asked_at < ON_ITS_WAY


def _why_lost(job: TrackedJob) -> str:
    return "Slurm no longer knows its job" if job.job_id else "it is unknown whether Slurm ever had it"


def own_job_id() -> int:
    """Return the id of the Slurm job that this process runs in; 0 if none."""
    text = os.environ.get("SLURM_JOB_ID", "")
    return int(text) if text.isdecimal() else 0
