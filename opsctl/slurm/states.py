"""Slurm's words for jobs, each with what it means here: states, ends, reasons for waiting. Pure.

The states are those that squeue and sacct print: of a job's base state and its flags they name one. A newer Slurm may
print others; they are `Phase.UNKNOWN`, which is neither running nor over.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto


class State(StrEnum):
    """A job's state in Slurm's long form (squeue(1), JOB STATE CODES)."""

    PENDING = "PENDING"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    COMPLETING = "COMPLETING"
    SUSPENDED = "SUSPENDED"
    STOPPED = "STOPPED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"
    TIMEOUT = "TIMEOUT"
    DEADLINE = "DEADLINE"
    CANCELLED = "CANCELLED"
    REVOKED = "REVOKED"
    PREEMPTED = "PREEMPTED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"


class Phase(Enum):
    """The phase of a job between its submission and its end."""

    WAITING = auto()  # for its nodes
    ON_NODES = auto()  # it has them, or is getting or giving them back
    PAUSED = auto()  # it has them and does not run on them
    HELD = auto()  # until a person releases it
    ENDED = auto()
    UNKNOWN = auto()  # a state that this table does not know


class End(StrEnum):
    """The cause of a job's end, if Slurm knows more than its exit code."""

    NODE_FAILURE = "node-failure"
    TIME_LIMIT = "time-limit"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    OUT_OF_MEMORY = "out-of-memory"


class Wait(Enum):
    """The reason why a job waits."""

    QUEUE = auto()  # its turn, or anything else that comes by itself
    PERSON = auto()  # to be released
    DEPENDENCY_LOST = auto()  # a dependency that can never be satisfied
    CHANGE = auto()  # as it was submitted it can never start here


#: The phase of each state.
PHASES: dict[State, Phase] = {
    **dict.fromkeys((State.PENDING, State.REQUEUED, State.REQUEUE_FED), Phase.WAITING),
    **dict.fromkeys((State.CONFIGURING, State.RUNNING, State.RESIZING, State.SIGNALING), Phase.ON_NODES),
    **dict.fromkeys((State.STAGE_OUT, State.COMPLETING), Phase.ON_NODES),
    **dict.fromkeys((State.SUSPENDED, State.STOPPED), Phase.PAUSED),
    **dict.fromkeys((State.REQUEUE_HOLD, State.SPECIAL_EXIT, State.RESV_DEL_HOLD), Phase.HELD),
    **dict.fromkeys((State.COMPLETED, State.FAILED, State.NODE_FAIL, State.BOOT_FAIL, State.TIMEOUT), Phase.ENDED),
    **dict.fromkeys((State.DEADLINE, State.CANCELLED, State.REVOKED), Phase.ENDED),
    **dict.fromkeys((State.PREEMPTED, State.OUT_OF_MEMORY), Phase.ENDED),
}
#: What ended states say. COMPLETED and FAILED are left out: they say less than the job's own processes do.
ENDS: dict[State, End] = {
    State.NODE_FAIL: End.NODE_FAILURE,
    State.BOOT_FAIL: End.NODE_FAILURE,
    State.TIMEOUT: End.TIME_LIMIT,
    State.DEADLINE: End.TIME_LIMIT,
    State.CANCELLED: End.CANCELLED,
    State.REVOKED: End.CANCELLED,
    State.PREEMPTED: End.PREEMPTED,
    State.OUT_OF_MEMORY: End.OUT_OF_MEMORY,
}


class Reason(StrEnum):
    """A reason why a job waits, of those that mean something here (squeue(1), JOB REASON CODES)."""

    NONE = "None"  # not considered yet
    PRIORITY = "Priority"
    RESOURCES = "Resources"
    BEGIN_TIME = "BeginTime"
    ARRAY_TASK_LIMIT = "JobArrayTaskLimit"
    DEPENDENCY = "Dependency"
    DEPENDENCY_NEVER_SATISFIED = "DependencyNeverSatisfied"
    HELD_BY_USER = "JobHeldUser"
    HELD_BY_ADMIN = "JobHeldAdmin"
    HELD_AFTER_REQUEUES = "JobHoldMaxRequeue"
    HELD_AFTER_FAILED_LAUNCH = "launch failed requeued held"
    BAD_CONSTRAINTS = "BadConstraints"
    INVALID_ACCOUNT = "InvalidAccount"
    INVALID_QOS = "InvalidQOS"
    ACCOUNT_NOT_ALLOWED = "AccountNotAllowed"
    QOS_NOT_ALLOWED = "QOSNotAllowed"
    PARTITION_CONFIG = "PartitionConfig"
    PARTITION_NODE_LIMIT = "PartitionNodeLimit"
    PARTITION_TIME_LIMIT = "PartitionTimeLimit"
    RESERVATION_DELETED = "ReservationDeleted"
    DEADLINE = "DeadLine"


_PERSON = (Reason.HELD_BY_USER, Reason.HELD_BY_ADMIN, Reason.HELD_AFTER_REQUEUES, Reason.HELD_AFTER_FAILED_LAUNCH)
_CHANGE = (
    *(Reason.BAD_CONSTRAINTS, Reason.INVALID_ACCOUNT, Reason.INVALID_QOS, Reason.ACCOUNT_NOT_ALLOWED),
    *(Reason.QOS_NOT_ALLOWED, Reason.PARTITION_CONFIG, Reason.PARTITION_NODE_LIMIT, Reason.PARTITION_TIME_LIMIT),
    *(Reason.RESERVATION_DELETED, Reason.DEADLINE),
)
#: The reasons that do not go away by themselves, and what such a job waits for.
WAITS: dict[Reason, Wait] = {
    Reason.DEPENDENCY_NEVER_SATISFIED: Wait.DEPENDENCY_LOST,
    **dict.fromkeys(_PERSON, Wait.PERSON),
    **dict.fromkeys(_CHANGE, Wait.CHANGE),
}
_STATES = frozenset(map(str, State))
_REASONS = {str(reason): reason for reason in Reason}


def phase_of(state: str) -> Phase:
    """Return the phase of a job in this state of Slurm's; `Phase.UNKNOWN` for a state that is not in the table."""
    return PHASES[State(state)] if state in _STATES else Phase.UNKNOWN


def end_of(state: str) -> End | None:
    """Return the cause in an ended state. None if it shows none, is no end, or is not in the table."""
    return ENDS.get(State(state)) if state in _STATES else None


def wait_of(reason: str) -> Wait:
    """Return what a job waits for; of an array's tasks with several reasons, what all of them wait for."""
    known = [_REASONS.get(one.replace("_", " ")) for one in reason.split(",")]
    waits = {WAITS.get(one, Wait.QUEUE) if one else Wait.QUEUE for one in known}
    return waits.pop() if len(waits) == 1 else Wait.QUEUE
