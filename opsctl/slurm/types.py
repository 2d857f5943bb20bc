"""Slurm's data as values: jobs, nodes, states. Pure; no process, no file."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from opsctl.slurm.states import End, Phase, State, Wait, end_of, phase_of, wait_of


class Job(msgspec.Struct, frozen=True, gc=False):
    """One row of the queue: one array task, or the not yet started rest of an array.

    A struct, because a queue may have 100,000 rows: it is made in a quarter of a dataclass's time.
    """

    job_id: int  # Slurm's own id of this task (equal to array_job_id for the rest of an array)
    array_job_id: int  # the id sbatch printed; equal to job_id where there is no array
    array_task: str  # "" without an array, "2", or what is pending of it: "2-3%1"
    name: str
    user: str
    partition: str
    state: str  # Slurm's long state, e.g. "PENDING": one of `states.State`, or a newer Slurm's
    reason: str  # Slurm's reason, "None" when there is none: one of `states.Reason`, or any other
    nodes: str  # folded node list, "" while pending
    node_count: int
    elapsed_s: int
    time_limit_s: int | None  # None: unlimited
    submitted_at: datetime | None  # with zone
    started_at: datetime | None  # real or expected start, None when unknown
    ends_at: datetime | None
    dependency: str
    comment: str
    work_dir: str

    @property
    def display_id(self) -> str:
        """The id as squeue shows it: `12`, `12_2`, `12_[2-3%1]`."""
        if not self.array_task:
            return str(self.job_id)
        rest = self.array_task if self.array_task.isdigit() else f"[{self.array_task}]"
        return f"{self.array_job_id}_{rest}"

    @property
    def tasks_id(self) -> str:
        """The id of this whole row for scontrol: `12_[2-3]`; the array's id alone would include running tasks."""
        tasks = self.array_task.partition("%")[0]
        return f"{self.array_job_id}_[{tasks}]" if tasks and not tasks.isdigit() else self.display_id

    @property
    def phase(self) -> Phase:
        """The phase between submission and end. A job in an unknown state counts as running if it has nodes."""
        phase = phase_of(self.state)
        return Phase.ON_NODES if phase is Phase.UNKNOWN and self.nodes else phase

    def elapsed_at_s(self, now: datetime) -> int:
        """Return the seconds that it has run by `now`, without suspended time: Slurm moves its end by that."""
        if self.state != State.RUNNING or self.started_at is None:
            return self.elapsed_s
        paused_s = 0.0
        if self.ends_at is not None and self.time_limit_s is not None:
            paused_s = max(0.0, (self.ends_at - self.started_at).total_seconds() - self.time_limit_s)
        return max(self.elapsed_s, int((now - self.started_at).total_seconds() - paused_s))

    def left_at_s(self, now: datetime) -> int | None:
        """Return the seconds that are left of its time limit at `now`; None without a limit."""
        return None if self.time_limit_s is None else max(0, self.time_limit_s - self.elapsed_at_s(now))

    @property
    def is_pending(self) -> bool:
        """Return whether `scancel --state=PENDING` cancels it: not started, nor about to return after a requeue."""
        return self.state == State.PENDING

    @property
    def is_running(self) -> bool:
        """Return whether it has its nodes and is not paused."""
        return self.phase is Phase.ON_NODES

    @property
    def is_held(self) -> bool:
        """Return whether only a user can let it start."""
        return self.phase is Phase.HELD or (self.is_pending and wait_of(self.reason) is Wait.PERSON)

    @property
    def cannot_start(self) -> bool:
        """Return whether it waits for something that never happens unless a user changes the job or the cluster."""
        return self.is_pending and wait_of(self.reason) in (Wait.DEPENDENCY_LOST, Wait.CHANGE)


@dataclass(frozen=True)
class JobEnd:
    """The end of a job, according to accounting or the controller's memory."""

    job_id: int
    state: str  # one of `states.State` that ended it, or a newer Slurm's
    exit_code: int
    signal: int
    started_at: datetime | None
    ended_at: datetime | None
    nodes: str
    # Who the job was; "" and None where Slurm does not tell.
    name: str = ""
    user: str = ""
    comment: str = ""
    work_dir: str = ""
    submitted_at: datetime | None = None

    @classmethod
    def of(cls, job: Job, exit_code: int, signal: int) -> JobEnd:
        """Return the end of a job that the controller still knows."""
        return cls(
            job_id=job.job_id,
            state=job.state,
            exit_code=exit_code,
            signal=signal,
            started_at=job.started_at,
            ended_at=job.ends_at,
            nodes=job.nodes,
            name=job.name,
            user=job.user,
            comment=job.comment,
            work_dir=job.work_dir,
            submitted_at=job.submitted_at,
        )


_WORDS = {
    End.TIME_LIMIT: "Slurm ended it at its time limit",
    End.CANCELLED: "a user cancelled it",
    End.PREEMPTED: "Slurm preempted it",
    End.NODE_FAILURE: "its node failed",
    End.OUT_OF_MEMORY: "it was out of memory",
}


@dataclass(frozen=True)
class JobOutcome:
    """Slurm's view of the end of a job."""

    end: End | None  # what ended it; None where its script did
    is_success: bool
    exit_code: int  # of its script, 128 + N where signal N ended it
    words: str


def job_outcome(end: JobEnd) -> JobOutcome:
    """Return the meaning of `end`."""
    known, code = end_of(end.state), exit_code_of(end)
    if known is not None:
        return JobOutcome(known, False, code, _WORDS[known])
    is_success = end.state == State.COMPLETED and not code
    return JobOutcome(None, is_success, code, "its process recorded no end; this is Slurm's record")


def exit_code_of(end: JobEnd) -> int:
    """As a shell says it: 128 + N where signal N ended the job's script."""
    return 128 + end.signal if end.signal else end.exit_code
