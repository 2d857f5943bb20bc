"""Parse Slurm's tables.

Fields end with a unit separator and rows with a record separator, because job names and comments contain newlines. Any
user can put separators into a job's name as well, and so forge rows of other users' jobs. So each question about jobs
has its own row end (`new_row_end`).
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Generic, TypeVar

from opsctl.slurm.durations import parse_duration_s
from opsctl.slurm.states import Phase, phase_of
from opsctl.slurm.types import Job, JobEnd

FIELD_END = "\x1f"
ROW_END = "\x1e"
T = TypeVar("T")

#: squeue's own names, in the order in which `parse_queue` reads them. Without a width after the colon no field is cut.
QUEUE_FIELDS = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "Name", "UserName", "Partition", "State", "Reason", "NodeList"),
    *("NumNodes", "TimeUsed", "TimeLimit", "SubmitTime", "StartTime", "EndTime", "Dependency", "Comment", "WorkDir"),
)
#: Those and how it ended, which a poll of all jobs does without.
END_FIELDS = (*QUEUE_FIELDS, "exit_code")
#: When a job was preempted, which is asked for on its own.
PREEMPTION_FIELDS = ("JobID", "PreemptTime")
#: And sacct's. The first ones say how the job ended; a name or a comment with a line break cuts what comes after it.
ACCOUNTING_FIELDS = (
    *("JobIDRaw", "State", "ExitCode", "Start", "End", "NodeList"),
    *("JobName", "User", "WorkDir", "Submit", "Comment"),
)
_OF_THE_END = 6
#: A text -> the same, but empty for the texts with which Slurm says that there is nothing.
_or_empty = dict.fromkeys(("(null)", "N/A", "NONE", "Unknown", "None", "None assigned"), "").get


def new_row_end() -> str:
    """Return an end of rows that is in no job's name yet."""
    return ROW_END + secrets.token_hex(8)


def queue_format(fields: Sequence[str], row_end: str = ROW_END) -> str:
    """Return the argument of `squeue --Format`, and of sinfo's."""
    return ",".join(f"{field}:{FIELD_END}" for field in fields[:-1]) + f",{fields[-1]}:{row_end}"


class RowReader(Generic[T]):
    """Makes values of rows while they are printed: those of 100,000 jobs take as long to read as to print."""

    def __init__(self, fields: Sequence[str], make: Callable[[Sequence[str]], T], row_end: str = ROW_END) -> None:
        """fields: of each row. make: a value of the texts of one."""
        self.found: list[T] = []
        self._number, self._make, self._row_end, self._rest = len(fields), make, row_end, b""

    def feed(self, data: bytes) -> None:
        """Process the next piece of output; complete rows become values."""
        whole, end, self._rest = (self._rest + data).rpartition(self._row_end.encode())
        if end:
            # Job names may contain any bytes.
            self.found += map(self._make, rows(whole.decode(errors="replace"), self._number, self._row_end))

    @property
    def breaks_off(self) -> bool:
        """Return whether the output ends with an incomplete row."""
        return bool(self._rest.strip())


def ends_of(rows_of_jobs: Iterable[Sequence[str]], now: datetime) -> dict[int, JobEnd]:
    """Return the jobs that had ended by `now` among rows of `squeue --states=all` in `END_FIELDS`."""
    ends = {}
    for fields in rows_of_jobs:
        job = job_of(fields)
        if not has_ended(job.state, job.ends_at, now):
            continue
        ends[job.job_id] = JobEnd.of(job, *_exit_status(fields[len(QUEUE_FIELDS)]))
    return ends


def preemptions_of(rows_of_jobs: Iterable[Sequence[str]]) -> dict[int, datetime]:
    """Return when each job was preempted that was, of squeue's rows in `PREEMPTION_FIELDS`."""
    return {int(job_id): at for job_id, text in rows_of_jobs if job_id.isdigit() and (at := _time(text)) is not None}


def parse_accounting(text: str, now: datetime) -> dict[int, JobEnd]:
    """Return the jobs that had ended by `now`, from `sacct --parsable2` rows of `ACCOUNTING_FIELDS`."""
    ends = {}
    for line in text.splitlines():
        fields = line.split(FIELD_END)
        if len(fields) < _OF_THE_END or not fields[0].isdigit():
            continue
        fields += [""] * (len(ACCOUNTING_FIELDS) - len(fields))
        state = fields[1].split()[0].rstrip("+") if fields[1].strip() else "UNKNOWN"
        ended_at = _time(fields[4])
        if not has_ended(state, ended_at, now):
            continue
        code, _, signal = fields[2].partition(":")
        ends[int(fields[0])] = JobEnd(
            job_id=int(fields[0]),
            state=state,
            exit_code=int(code) if code.isdigit() else 0,
            signal=int(signal) if signal.isdigit() else 0,
            started_at=_time(fields[3]),
            ended_at=ended_at,
            nodes=_or_empty(fields[5], fields[5]),
            name=fields[6],
            user=fields[7],
            work_dir=fields[8],
            submitted_at=_time(fields[9]),
            comment=_or_empty(fields[10], fields[10]),
        )
    return ends


def has_ended(state: str, ended_at: datetime | None, now: datetime) -> bool:
    """Return whether a job is over. One in an unknown state is over once its end, which squeue expects, has passed."""
    phase = phase_of(state)
    if phase is Phase.UNKNOWN:
        return ended_at is not None and ended_at <= now
    return phase is Phase.ENDED


def _exit_status(text: str) -> tuple[int, int]:
    """(exit code, signal) of squeue's exit_code: a raw wait status up to 22.05 at least, `code:signal` in 25.11."""
    code, colon, signal = text.partition(":")
    if colon:
        return int(code) if code.isdigit() else 0, int(signal) if signal.isdigit() else 0
    status = int(text) if text.isdigit() else 0
    return status >> 8, status & 0x7F


def rows(text: str, number: int, row_end: str = ROW_END) -> Iterator[list[str]]:
    """Each row's `number` fields, as text of `queue_format` has them; rows with another number are left out."""
    for raw in text.split(row_end):
        # The newline after a record belongs to squeue, not to the next row's first field.
        row = raw.removeprefix("\n")
        if row:
            fields = row.split(FIELD_END)
            if len(fields) == number:
                yield fields


def job_of(f: Sequence[str]) -> Job:
    """Return a job from its texts in `QUEUE_FIELDS`, which further ones may follow."""
    return Job(
        job_id=int(f[0]),
        array_job_id=int(f[1]),
        array_task="" if f[2] == "N/A" else f[2],
        name=f[3],
        user=f[4],
        partition=f[5],
        state=f[6],
        reason=f[7],
        nodes=_or_empty(f[8], f[8]),
        node_count=int(f[9]) if f[9].isdigit() else 0,
        elapsed_s=_duration(f[10]) or 0,
        time_limit_s=_duration(f[11]),
        submitted_at=_time(f[12]),
        started_at=_time(f[13]),
        ends_at=_time(f[14]),
        dependency=_or_empty(f[15], f[15]),
        comment=_or_empty(f[16], f[16]),
        work_dir=f[17],
    )


@functools.lru_cache(maxsize=4096)
def _duration(text: str) -> int | None:
    """Seconds; None for UNLIMITED and what is not known. squeue's elapsed `M:SS` reads as minutes and seconds."""
    with contextlib.suppress(ValueError):
        return parse_duration_s(text)
    return None


@functools.lru_cache(maxsize=4096)
def _time(text: str) -> datetime | None:
    """Parse `2026-11-23T09:00:00`, in UTC, or seconds since the epoch; None for neither."""
    if text.isdigit():
        return datetime.fromtimestamp(int(text), UTC).astimezone() if text != "0" else None
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).replace(tzinfo=UTC).astimezone()
    return None
