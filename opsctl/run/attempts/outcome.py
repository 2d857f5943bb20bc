"""Decide why an attempt ended. Pure."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import msgspec

from opsctl.core.files.trusted import opened_file
from opsctl.core.output import printable
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import StackGroup, Verdict
from opsctl.run.checkpoints.inventory import Checkpoint
from opsctl.run.state.attempt_folder import exit_report, noted_failures, rank_map, started_with
from opsctl.slurm.states import End, State, end_of
from trainer.formats.attempt.attempt_records import STOP_REQUEST, Failure, RankPlace
from trainer.formats.attempt.environment import digest_of
from trainer.formats.attempt.error_file import is_lost_peer, says_nothing, signal_name
from trainer.formats.logs.training_line import iterations_in

#: Bytes of a node's output that are searched for its last iteration.
_TAIL_BYTES = 64 * 1024
#: The name of torch's error file of a rank, and more folders than the ranks of any attempt create.
_ERROR_FILE, _MOST_FOLDERS = "error.json", 20_000


@dataclass(frozen=True)
class Evidence:
    """The rank map, the launchers' failure records, the elastic error files, and the trainer's exit reason."""

    ranks: tuple[RankPlace, ...] = ()
    failures: tuple[Failure, ...] = ()
    error_files: tuple[str, ...] = ()
    exit_reason: str | None = None  # an Ending, or a value of another release
    exit_iteration: int | None = None
    stop_requested: bool = False  # by the job or a person
    logged_iteration: int | None = None  # the last one in the nodes' output
    environment: str = ""  # digest of the attempt's environment


def read_evidence(root: Path, folder: Path) -> Evidence:
    """Read an attempt's folder under the run's `root`; empty if there is none."""
    report = exit_report(root, folder)
    failures = noted_failures(root, folder)
    environment = started_with(root, folder)
    return Evidence(
        ranks=rank_map(root, folder),
        failures=failures,
        error_files=_error_files(folder, failures),
        exit_reason=report.reason or None,
        exit_iteration=report.iteration,
        stop_requested=os.path.lexists(folder / STOP_REQUEST),
        logged_iteration=_last_logged_iteration(root, folder),
        environment="" if environment is None else digest_of(environment),
    )


def _last_logged_iteration(root: Path, folder: Path) -> int | None:
    """Return the highest iteration in the last lines of the nodes' output; only the last rank's node prints them."""
    found: list[int] = []
    for path in folder.glob("*.out"):
        with contextlib.suppress(OSError), opened_file(root, path) as fd:
            found += iterations_in(os.pread(fd, _TAIL_BYTES, max(0, os.fstat(fd).st_size - _TAIL_BYTES)))
    return max(found, default=None)


def _error_files(folder: Path, failures: tuple[Failure, ...]) -> tuple[str, ...]:
    """Return the error files under NODE/ that failures name, and any other that a rank left."""
    named = [item.error_file for item in failures if item.error_file]
    walked = islice(os.walk(folder), _MOST_FOLDERS)  # follow no links: a link could lead to all of a file system
    found = sorted(f"{at}/{_ERROR_FILE}" for at, _, files in walked if at != str(folder) and _ERROR_FILE in files)
    return tuple(dict.fromkeys([*named, *found]))


#: Failures within this many seconds of the earliest are one event: nodes' clocks differ, and followers notice a lost
#: peer at once, sometimes before its own launcher does.
SAME_EVENT_S = 3.0
_NO_TIME = datetime.max.replace(tzinfo=UTC)


def elect(failures: Sequence[Failure]) -> tuple[Failure | None, tuple[Failure, ...]]:
    """Return (the failure that caused the others, the others in order of time).

    Of the first event: a rank that was killed or raised its own error comes before one that left without a message,
    one that lost a peer, and one that was asked to end, in this order. Then by time, then by rank.
    """
    if not failures:
        return None, ()
    earliest = min(map(_time, failures))
    first_event = [
        item for item in failures if _time(item) == earliest or (_time(item) - earliest).total_seconds() <= SAME_EVENT_S
    ]
    cause = min(first_event, key=lambda item: (_followership(item), _time(item), item.rank))
    rest = sorted((item for item in failures if item is not cause), key=lambda item: (_time(item), item.rank))
    return cause, tuple(rest)


def _followership(item: Failure) -> int:
    """Return how likely a failure only follows from another: 0 has its own cause."""
    ended_by = signal_of(item)
    if ended_by in (signal.SIGTERM, signal.SIGINT):
        return 3
    if is_lost_peer(item.message):
        return 2
    if ended_by is not None or _own_words(item):
        return 0
    return 1


def signal_of(item: Failure) -> int | None:
    """Return the signal that ended a rank, from either field."""
    if item.signal:
        return abs(item.signal)
    return -item.exit_code if item.exit_code is not None and item.exit_code < 0 else None


def _time(item: Failure) -> datetime:
    return item.failed_at or _NO_TIME


def describe(item: Failure) -> str:
    """Describe a failure in a few words: rank, node, exit."""
    ended_by = signal_of(item)
    if ended_by is not None:
        how = f"ended by {signal_name(ended_by)}"
    elif item.exit_code is not None:
        how = f"exit code {item.exit_code}"
    else:
        how = "failed"
    words = _own_words(item)
    return f"rank {item.rank} on {item.node or 'an unknown node'} {how}" + (f": {words[:200]}" if words else "")


def _own_words(item: Failure) -> str:
    lines = (printable(line.strip()) for line in item.message.splitlines())
    line = next((line for line in lines if line), "")
    return "" if says_nothing(line) else line


#: The state of a job that Slurm no longer knows.
LOST = "LOST"
#: The endings that Slurm's state gives if the job recorded none.
_WITHOUT_END: dict[str, Ending] = {State.REQUEUED: Ending.REQUEUED, LOST: Ending.UNKNOWN}


@dataclass(frozen=True)
class LauncherExit:
    """The first launcher that failed according to srun."""

    nodes: str  # one node, or several in Slurm's notation
    exit_code: int


@dataclass(frozen=True)
class StepEnd:
    """The end of the step as the batch process saw it."""

    exit_code: int | None  # srun's, 128 + signal if a signal ended it; None if unknown
    was_asked_to_end: bool = False  # Slurm sent SIGTERM to the batch process
    limit_reached: bool = False  # the SIGTERM came at the time limit
    slurm_state: str = ""  # Slurm's state, or LOST; "" if unknown
    lost_nodes: tuple[str, ...] = ()  # nodes that failed according to srun
    first_exit: LauncherExit | None = None  # except SIGTERM, with which srun ends the others
    overtaken: str = ""  # why the lease was lost during the step; else empty
    limit_warned: bool = False  # the stop request was Slurm's warning before the time limit
    asked_for: Ending | None = None  # the ending that a person requested
    ended_on_request: bool = False  # the trainer did not leave on request, so the job ended the step
    ended_hung: bool = False  # the step hung, so the job ended it
    iteration: int | None = None  # the last one that another training program reported
    stacks: tuple[StackGroup, ...] = ()  # stacks of a silent step at its end
    verdict: Verdict | None = None  # based on the stacks


def reason_of(step: StepEnd, evidence: Evidence) -> str:
    """Return why an attempt ended: an Ending, or a trainer's reason that this release does not know.

    Being overtaken by another writer comes first. Then the trainer's own reason, unless it left because of a lost node;
    then Slurm's action on the job; then the launchers' records.
    """
    if step.overtaken and evidence.exit_reason != Ending.FINISHED:
        return Ending.OVERTAKEN
    node_lost = bool(step.lost_nodes) or end_of(step.slurm_state) is End.NODE_FAILURE
    if node_lost and evidence.exit_reason in (None, Ending.STOP_REQUEST):
        return Ending.NODE_FAILURE
    slurms = slurm_reason(step.slurm_state)
    ended_for_it = step.ended_on_request and evidence.exit_reason is None and slurms is None
    if step.asked_for is not None and (evidence.exit_reason == Ending.STOP_REQUEST or ended_for_it):
        return step.asked_for
    if step.limit_warned and evidence.stop_requested and evidence.exit_reason == Ending.STOP_REQUEST:
        return Ending.EXIT_DURATION  # in time for the limit, whichever clock was first
    # Ranks that save on SIGTERM report a stop request; without a request, the sender of the signal is the reason.
    told_by_signal = evidence.exit_reason == Ending.STOP_REQUEST and (
        not evidence.stop_requested or _was_sent_away(step)
    )
    if evidence.exit_reason and not told_by_signal:
        return evidence.exit_reason
    if step.ended_hung:
        return Ending.HANG
    if slurms is not None:
        return slurms
    if step.was_asked_to_end:
        return Ending.TIME_LIMIT if step.limit_reached else Ending.CANCELLED
    cause, _ = elect(evidence.failures)
    if cause is not None:
        return Ending.SIGNAL if signal_of(cause) is not None else Ending.FAILED
    if step.first_exit is not None and step.first_exit.exit_code < 128:
        return Ending.FAILED
    if step.exit_code is not None and step.exit_code > 128:
        return Ending.SIGNAL
    if evidence.exit_reason:
        return evidence.exit_reason
    return Ending.FAILED if step.exit_code else Ending.COMPLETED


def slurm_reason(state: str) -> Ending | None:
    """Return the ending that Slurm's state implies; None if it implies none."""
    end = end_of(state)
    return Ending(end) if end is not None else _WITHOUT_END.get(state)


def _was_sent_away(step: StepEnd) -> bool:
    """Return True if the stop request is the job's own record of a SIGTERM other than the limit's."""
    if slurm_reason(step.slurm_state) is not None:
        return end_of(step.slurm_state) in (End.CANCELLED, End.PREEMPTED)
    return step.was_asked_to_end and not step.limit_reached


def closed(
    attempt: Attempt,
    step: StepEnd,
    evidence: Evidence,
    checkpoint: Checkpoint | None,
    now: datetime,
    closed_by: str = "job",
    note: str = "",
) -> Attempt:
    """Return `attempt` with all fields of its closing."""
    cause, others = elect(evidence.failures)
    at_checkpoint = checkpoint.iteration if checkpoint else None
    known = (evidence.exit_iteration, evidence.logged_iteration, step.iteration, at_checkpoint)
    return msgspec.structs.replace(
        attempt,
        closed_at=now,
        closed_by=closed_by,
        reason=reason_of(step, evidence),
        exit_code=exit_code_of(step, cause),
        signal=signal_of(cause) if cause else _signal_in(exit_code_of(step, None)),
        iteration_at_end=next((one for one in known if one is not None), None),
        checkpoint_at_end=at_checkpoint,
        first_failure=cause,
        other_failures=others,
        error_files=evidence.error_files,
        ranks=evidence.ranks,
        lost_nodes=step.lost_nodes,
        note=note or _launcher_note(step, cause),
        environment=evidence.environment,
        verdict=step.verdict,
        stacks=step.stacks,
    )


def exit_code_of(step: StepEnd, cause: Failure | None) -> int | None:
    """Return the cause's exit code if srun only reports that it ended the others (143), else srun's."""
    if cause is None and step.exit_code and step.first_exit is not None:
        return step.first_exit.exit_code
    if cause is None or not step.exit_code:
        return step.exit_code
    ended_by = signal_of(cause)
    return 128 + ended_by if ended_by is not None else cause.exit_code or step.exit_code


def _launcher_note(step: StepEnd, cause: Failure | None) -> str:
    """Return a hint if no rank failed: a launcher, the environment script or Python itself did."""
    if cause is not None or not step.exit_code or step.first_exit is None:
        return ""
    found = step.first_exit
    return f"no rank failed, the launcher on {found.nodes} exited with code {found.exit_code}. To see why: opsctl logs"


def _signal_in(exit_code: int | None) -> int | None:
    return exit_code - 128 if exit_code is not None and 128 < exit_code < 128 + 65 else None
