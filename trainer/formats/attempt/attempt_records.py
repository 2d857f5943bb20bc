"""Records in an attempt's folder: where each rank ran, which rank failed, and why the training stopped.

Launchers write `ranks-NODERANK.json` (a list of RankPlace) and `failure-NODERANK.json` (a Failure). Global rank 0
writes `leaving.json` (a LeavingNote) and `exit.json` (an ExitReport). The job writes `stop-request` (a StopRequest;
the trainer checks only that it exists) and `save-request` (a SaveRequest), which rank
0 answers with `saved.json` (a SavedNote). All are read with `trainer.formats.tolerant`, because a crash may have
truncated any of them.
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
SAVE_REQUEST = "save-request"
SAVED_NOTE = "saved.json"

#: The first word of a launcher that waits for a Start on its stdin.
STANDBY = "--standby"
#: The exit status of a rank that ended itself because another rank had failed or stopped answering.
HARD_END_STATUS = 70


def ranks_file(node_rank: int) -> str:
    """Return the file name of the rank map that a node's launcher writes."""
    return RANKS_FILES.replace("*", str(node_rank))


def failure_file(node_rank: int) -> str:
    """Return the file name of the record of a node's first rank to fail."""
    return FAILURE_FILES.replace("*", str(node_rank))


def clock_file(node_rank: int) -> str:
    """Return the file name of a node's clock at the start of its launcher."""
    return CLOCK_FILES.replace("*", str(node_rank))


class NodeClock(msgspec.Struct, frozen=True):
    """A node's clock when this file was written. The file's mtime is the file server's clock at the same moment."""

    node: str
    clock: Moment


class RankPlace(msgspec.Struct, frozen=True):
    """The node and process of a rank."""

    rank: Annotated[int, Meta(description="Global rank.")]
    node: Annotated[str, Meta(description="The node's name.")] = ""
    gpu: Annotated[str, Meta(description="Its GPU, as Slurm or the user names it; empty without one.")] = ""
    local_rank: Annotated[int | None, Meta(description="Its number on the node.")] = None
    pid: Annotated[int | None, Meta(description="Its process id on the node.")] = None


class Failure(msgspec.Struct, frozen=True):
    """One rank's failure, as the launcher on its node saw it."""

    rank: Annotated[int, Meta(description="Global rank.")]
    node: Annotated[str, Meta(description="The node's name.")] = ""
    local_rank: Annotated[int | None, Meta(description="Its number on the node.")] = None
    exit_code: Annotated[int | None, Meta(description="Its exit code; null if a signal ended it.")] = None
    signal: Annotated[int | None, Meta(description="The signal that ended it; null without one.")] = None
    failed_at: Annotated[Moment | None, Meta(description="The time of the failure.")] = None
    message: Annotated[str, Meta(description="Its last message, in a line.")] = ""
    error_file: Annotated[
        str, Meta(description="Path of torch elastic's error file in the attempt's folder; empty without one.")
    ] = ""


class LeavingNote(msgspec.Struct, frozen=True):
    """A note that all ranks have agreed to stop, written before they save. The exit report follows the save."""

    reason: str = ""  # as in the exit report
    iteration: int | None = None  # the last completed one
    at: Moment | None = None
    saves: bool = True  # another program may save on no request


class ExitReport(msgspec.Struct, frozen=True):
    """The reason why the training stopped, and its progress."""

    reason: str = ""  # a leave_lines.Reason, or a word of another release
    iteration: int | None = None
    consumed_train_samples: int | None = None


class Start(msgspec.Struct, frozen=True):
    """The line that starts a launcher on standby."""

    nodes: tuple[str, ...]  # names, in the order of their ranks
    words: tuple[str, ...]  # of the launcher, except --node-rank
    variables: dict[str, str] = {}


class StopRequest(msgspec.Struct, frozen=True):
    """A request to save and stop. Only the existence of the file matters."""

    why: str = ""
    at: Moment | None = None
    by: str = ""


class SaveRequest(msgspec.Struct, frozen=True):
    """A request to save and continue. Each id is carried out once."""

    id: str


class SavedNote(msgspec.Struct, frozen=True):
    """The result of a save request."""

    id: str  # of the request
    iteration: int | None = None  # of the newest checkpoint
    problem: str = ""  # why nothing was saved; empty on success
    at: Moment | None = None
