"""What an attempt leaves in its folder for whoever looks later: who ran where, who failed, why the training left.

Launchers write `ranks-NODERANK.json` (a list of RankPlace) and `failure-NODERANK.json` (a Failure), global rank 0
writes `leaving.json` (a LeavingNote) and `exit.json` (an ExitReport), and the job writes `stop-request` (a
StopRequest), of which the trainer only asks whether it is there, `exit-later.json` (a LaterExit), and `save-request` (a
SaveRequest), to which rank 0 answers with `saved.json` (a SavedNote). All are read with `trainer.formats.tolerant`: a
crash may have cut any of them short.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from trainer.formats.json_text import Moment

#: Patterns that match every launcher's file of the kind.
RANKS_FILES = "ranks-*.json"
FAILURE_FILES = "failure-*.json"
CLOCK_FILES = "clock-*.json"
LEAVING_NOTE = "leaving.json"
EXIT_REPORT = "exit.json"
STOP_REQUEST = "stop-request"
LATER_EXIT = "exit-later.json"
SAVE_REQUEST = "save-request"
SAVED_NOTE = "saved.json"

#: The exit status of a rank that ended itself without asking, as it did not come to its own end.
HARD_END_STATUS = 70


def ranks_file(node_rank: int) -> str:
    """The name of the rank map of a node's launcher."""
    return RANKS_FILES.replace("*", str(node_rank))


def failure_file(node_rank: int) -> str:
    """The name of the record of a node's first rank to fail."""
    return FAILURE_FILES.replace("*", str(node_rank))


def clock_file(node_rank: int) -> str:
    """The name of what a node's clock said when its launcher began."""
    return CLOCK_FILES.replace("*", str(node_rank))


class NodeClock(msgspec.Struct, frozen=True):
    """What a node's clock said as this was written; the file's mtime is what the file server's said."""

    node: str
    clock: Moment


class RankPlace(msgspec.Struct, frozen=True):
    """Where a rank runs."""

    rank: Annotated[int, Meta(description="Global rank.")]
    node: Annotated[str, Meta(description="Name of its node.")] = ""
    gpu: Annotated[str, Meta(description="Its GPU, as Slurm or the user names it; empty without one.")] = ""
    local_rank: Annotated[int | None, Meta(description="Its number on the node.")] = None
    pid: Annotated[int | None, Meta(description="Its process on the node.")] = None


class Failure(msgspec.Struct, frozen=True):
    """One rank's failure, as the launcher on its node saw it."""

    rank: Annotated[int, Meta(description="Global rank.")]
    node: Annotated[str, Meta(description="Name of its node.")] = ""
    local_rank: Annotated[int | None, Meta(description="Its number on the node.")] = None
    exit_code: Annotated[int | None, Meta(description="Its exit code; null when a signal ended it.")] = None
    signal: Annotated[int | None, Meta(description="Number of the signal that ended it.")] = None
    failed_at: Annotated[Moment | None, Meta(description="When it failed.")] = None
    message: Annotated[str, Meta(description="What it said last, in a line.")] = ""
    error_file: Annotated[
        str, Meta(description="Path of torch elastic's error file, kept in the attempt's folder; empty without one.")
    ] = ""


class LeavingNote(msgspec.Struct, frozen=True):
    """That all ranks have agreed to leave, written before they save; the report follows when everything is saved."""

    reason: str = ""  # as in the report
    iteration: int | None = None  # the last one done
    at: Moment | None = None


class ExitReport(msgspec.Struct, frozen=True):
    """Why the training left, and how far it had come."""

    reason: str = ""  # a leave_lines.Reason, or a word that only another release knows
    iteration: int | None = None
    consumed_train_samples: int | None = None


class StopRequest(msgspec.Struct, frozen=True):
    """Who asks a training to save and leave. The file alone is what counts."""

    why: str = ""
    at: Moment | None = None
    by: str = ""


class LaterExit(msgspec.Struct, frozen=True):
    """Until when a training may go on past the exit duration that it was started with: Slurm's limit was raised."""

    at: Moment
    why: str = ""


class SaveRequest(msgspec.Struct, frozen=True):
    """That the training is to save and go on. One is carried out once; the next one has another id."""

    id: str


class SavedNote(msgspec.Struct, frozen=True):
    """What came of a save request."""

    id: str  # the request's
    iteration: int | None = None  # of the checkpoint that there is now
    problem: str = ""  # why there is none; empty when all is well
    at: Moment | None = None
