"""The reasons why an attempt ended, as records, the training log and screens name them."""

from __future__ import annotations

from enum import StrEnum

from opsctl.slurm.states import End
from trainer.formats.logs.guard_lines import Reason


class Ending(StrEnum):
    """The trainer's reasons, Slurm's reasons, and reasons that only the job or the closing command knows."""

    KILL_SWITCH = Reason.KILL_SWITCH.value
    STOP_REQUEST = Reason.STOP_REQUEST.value
    EXIT_DURATION = Reason.EXIT_DURATION.value
    EXIT_INTERVAL = Reason.EXIT_INTERVAL.value
    EXIT_SAMPLES = Reason.EXIT_SAMPLES.value
    SKIPPED_ITERATIONS = Reason.SKIPPED_ITERATIONS.value  # the training stopped itself because it no longer learned
    OVERTAKEN = Reason.OVERTAKEN.value
    FINISHED = Reason.FINISHED.value
    SIGNAL = Reason.SIGNAL.value  # a signal ended a rank or srun

    NODE_FAILURE = End.NODE_FAILURE.value
    TIME_LIMIT = End.TIME_LIMIT.value
    CANCELLED = End.CANCELLED.value
    PREEMPTED = End.PREEMPTED.value
    OUT_OF_MEMORY = End.OUT_OF_MEMORY.value

    BRAKE = "brake"  # too many attempts before it made no checkpoint
    HELD = "held"  # another writer had the lease and continued
    COMPLETED = "completed"  # exit code 0 without a reason
    FAILED = "failed"
    HANG = "hang"  # its ranks hung, and the job ended it
    REQUEUED = "requeued"  # Slurm requeued the job
    UNKNOWN = "unknown"  # Slurm no longer knows the job


#: Endings of a task that trained nothing and read no checkpoint: the iterations at its start and end are not its own.
STARTED_NOTHING = frozenset({Ending.HELD, Ending.BRAKE})
#: Endings of an attempt that trained as long as planned.
AS_PLANNED = frozenset(
    {
        *(Ending.FINISHED, Ending.EXIT_DURATION, Ending.EXIT_INTERVAL, Ending.EXIT_SAMPLES, Ending.STOP_REQUEST),
        *(Ending.KILL_SWITCH, Ending.TIME_LIMIT, Ending.COMPLETED),
    }
)

#: The words of a screen for endings whose record's word is unclear alone.
_WORDS: dict[str, str] = {Ending.HELD: "another writer", Ending.BRAKE: "failure limit", Ending.UNKNOWN: "not known"}


def ending_words(reason: str) -> str:
    """Return the words for people: "another writer" for an attempt that found the lease taken."""
    return _WORDS.get(reason, reason)
