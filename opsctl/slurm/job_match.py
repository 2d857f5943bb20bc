"""Decide whether a job that Slurm shows under a recorded id is the recorded job. Pure.

A controller that loses its state gives the same ids again, to jobs of any user. So an id alone proves nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

from opsctl.slurm.types import Job, JobEnd

#: A recorded submission and the controller's time of it may differ by this much.
SUBMISSION_TOLERANCE = timedelta(minutes=10)
#: The first word of every comment that opsctl gives a job.
_OUR_WORD = "opsctl"


class Match(Enum):
    """The answer to the question whether a job is the recorded one."""

    OURS = auto()  # the comment, or name, work folder and time of submission together, prove it
    NOT_OURS = auto()  # something that is known contradicts it
    UNKNOWN = auto()  # too little is recorded, or shown


@dataclass(frozen=True)
class Sent:
    """The record of a submission. An empty value is not recorded."""

    comment: str = ""  # words that it has
    user: str = ""
    name: str = ""
    work_dir: str = ""
    earliest: datetime | None = None  # when it can have been submitted at first, by any clock
    latest: datetime | None = None  # and at last; None: later too, as a requeue counts as a submission


def sent_about(submitted_at: datetime | None) -> tuple[datetime | None, datetime | None]:
    """Return (earliest, latest) of a submission that was recorded at `submitted_at`."""
    if submitted_at is None:
        return None, None
    return submitted_at - SUBMISSION_TOLERANCE, submitted_at + SUBMISSION_TOLERANCE


def has_words(comment: str, expected: str) -> bool:
    """Return whether `comment` is one of ours with all the words of `expected`; False where nothing is expected."""
    words = comment.split()
    return bool(expected) and words[:1] == [_OUR_WORD] and set(expected.split()) <= set(words)


def match(job: Job | JobEnd, sent: Sent) -> Match:
    """Compare what Slurm shows of `job` with what is recorded. Whatever contradicts the record decides.

    A comment of ours names the submission, so it decides alone. Any other comment is a person's, or a site's, and says
    nothing: then name, work folder, owner and time of submission have to agree.
    """
    if has_words(job.comment, sent.comment):
        return Match.OURS
    if sent.comment and job.comment.split()[:1] == [_OUR_WORD]:
        return Match.NOT_OURS
    pairs = ((job.user, sent.user), (job.name, sent.name), (job.work_dir, sent.work_dir))
    if any(shown and known and shown != known for shown, known in pairs):
        return Match.NOT_OURS
    at = job.submitted_at
    if at is not None and ((sent.earliest and at < sent.earliest) or (sent.latest and at > sent.latest)):
        return Match.NOT_OURS
    is_whole = all(shown and known for shown, known in pairs) and at is not None and sent.earliest is not None
    return Match.OURS if is_whole else Match.UNKNOWN


#: The comment that identifies a run's jobs, whatever their names and owners.
_COMMENT = re.compile(r"opsctl run=(?P<run>\S+) submit=(?P<token>\S+)")


@dataclass(frozen=True)
class JobComment:
    """The parsed comment of a job of ours."""

    run_id: str
    token: str  # of the one submission it came from

    @staticmethod
    def of_run(run_id: str | None) -> str:
        """Return the words with which the comment of every job of a run begins; empty for None."""
        return f"opsctl run={run_id}" if run_id else ""

    def __str__(self) -> str:
        return f"{self.of_run(self.run_id)} submit={self.token}"


def parse_comment(text: str) -> JobComment | None:
    """Parse a job's comment; None for one that is not ours."""
    match = _COMMENT.match(text)
    return JobComment(match["run"], match["token"]) if match else None
