"""How a job ended by Slurm's word alone, for who could not put it on record themselves. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.slurm.states import End, State, end_of
from opsctl.slurm.types import JobEnd

_SAID = {
    End.TIME_LIMIT: "Slurm ended it at its time limit",
    End.CANCELLED: "somebody cancelled it",
    End.PREEMPTED: "Slurm preempted it",
    End.NODE_FAILURE: "its node failed",
    End.OUT_OF_MEMORY: "it was out of memory",
}


@dataclass(frozen=True)
class SlurmsWord:
    """What Slurm says of the end of a job."""

    end: End | None  # what ended it; None where its script did
    is_success: bool
    exit_code: int  # of its script, 128 + N where signal N ended it
    said: str  # in words


def slurms_word(end: JobEnd) -> SlurmsWord:
    """What `end` comes to."""
    known, code = end_of(end.state), exit_code_of(end)
    if known is not None:
        return SlurmsWord(known, False, code, _SAID[known])
    is_success = end.state == State.COMPLETED and not code
    return SlurmsWord(None, is_success, code, "its own process put no end on record; Slurm says so")


def exit_code_of(end: JobEnd) -> int:
    """As a shell says it: 128 + N where signal N ended the job's script."""
    return 128 + end.signal if end.signal else end.exit_code
