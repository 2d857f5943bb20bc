"""What Slurm tells us, as values: jobs, nodes, states. Pure; no process, no file."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

#: Base states in which a job still is, or will be, in the system. COMPLETING is a flag that may stand beside any.
LIVE_STATES = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "STOPPED",
        "RESIZING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "SPECIAL_EXIT",
        "SIGNALING",
        "STAGE_OUT",
        "RESV_DEL_HOLD",
    }
)
#: Pending reasons that only a person can end.
HELD_REASONS = frozenset({"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "launch failed requeued held"})
NEVER_SATISFIED = "DependencyNeverSatisfied"


@dataclass(frozen=True)
class Job:
    """One row of the queue: one array task, or the not yet started rest of an array."""

    job_id: int  # Slurm's own id of this task (equal to array_job_id for the rest of an array)
    array_job_id: int  # the id sbatch printed; equal to job_id where there is no array
    array_task: str  # "" without an array, "2", or what is pending of it: "2-3%1"
    name: str
    user: str
    partition: str
    state: str  # Slurm's long state, e.g. "PENDING"
    reason: str  # Slurm's reason, "None" when there is none
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
    def is_held(self) -> bool:
        return self.state == "PENDING" and self.reason in HELD_REASONS


@dataclass(frozen=True)
class JobEnd:
    """How accounting, or the controller's memory, says that a job ended."""

    job_id: int
    state: str  # COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, ...
    exit_code: int
    signal: int
    started_at: datetime | None
    ended_at: datetime | None
    nodes: str
    failed_node: str  # "" when unknown
