"""Why an attempt ended, in one word: what records, the training log and screens call it."""

from __future__ import annotations

from enum import StrEnum

from opsctl.slurm.states import End
from trainer.formats.logs.guard_lines import Reason


class Ending(StrEnum):
    """The trainer's reasons, Slurm's, and those that only the job knows, or whoever closes for it."""

    KILL_SWITCH = Reason.KILL_SWITCH.value
    STOP_REQUEST = Reason.STOP_REQUEST.value
    EXIT_DURATION = Reason.EXIT_DURATION.value
    EXIT_INTERVAL = Reason.EXIT_INTERVAL.value
    EXIT_SAMPLES = Reason.EXIT_SAMPLES.value
    SKIPPED_ITERATIONS = Reason.SKIPPED_ITERATIONS.value  # the training has stopped itself: it no longer learned
    OVERTAKEN = Reason.OVERTAKEN.value
    FINISHED = Reason.FINISHED.value
    SIGNAL = Reason.SIGNAL.value  # one ended a rank, or srun

    NODE_FAILURE = End.NODE_FAILURE.value
    TIME_LIMIT = End.TIME_LIMIT.value
    CANCELLED = End.CANCELLED.value
    PREEMPTED = End.PREEMPTED.value
    OUT_OF_MEMORY = End.OUT_OF_MEMORY.value

    BRAKE = "brake"  # too many attempts before it made no checkpoint
    HELD = "held"  # another writer had the lease and went on
    COMPLETED = "completed"  # exit code 0, and nobody said why
    FAILED = "failed"
    HANG = "hang"  # its ranks waited for what did not come, and the job ended it
    REQUEUED = "requeued"  # Slurm has put the job back into the queue
    UNKNOWN = "unknown"  # Slurm no longer knows the job


#: Those of a task that trained nothing and read no checkpoint: what is at its start and end, another's training made.
STARTED_NOTHING = frozenset({Ending.HELD, Ending.BRAKE})
#: Those of an attempt that trained as long as it was to train.
AS_PLANNED = frozenset(
    {
        *(Ending.FINISHED, Ending.EXIT_DURATION, Ending.EXIT_INTERVAL, Ending.EXIT_SAMPLES, Ending.STOP_REQUEST),
        *(Ending.KILL_SWITCH, Ending.TIME_LIMIT, Ending.COMPLETED),
    }
)
