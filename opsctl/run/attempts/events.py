"""Events of attempts in `.opsctl/attempts.jsonl`, and the values that a pure function folds them into.

An event is one line, `{"event": "opened"|"closed", "id": ..., ...}`. Incomplete lines, lines of an unknown kind and
fields of the wrong type are ignored: reading never fails because of another writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from opsctl.core.files.state_files import append_state, make_folder, read_lines
from opsctl.run.attempts.verdict import StackGroup, Verdict
from opsctl.run.config.paths import RunPaths
from trainer.formats.attempt.attempt_records import Failure, RankPlace
from trainer.formats.json_text import Moment

OPENED, CLOSED = "opened", "closed"


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an attempt at its opening."""

    id: Annotated[str, Meta(description="Unique id, even if job ids start over.")]
    job_id: Annotated[int, Meta(description="Slurm's id of the job.")]
    array_job_id: Annotated[int | None, Meta(description="The chain's id; null without an array.")] = None
    array_task: Annotated[str, Meta(description="Its place in the array; empty without one.")] = ""
    chain_submitted_at: Annotated[Moment | None, Meta(description="When its chain was submitted.")] = None
    revision: Annotated[str, Meta(description="Name of the revision that it trained.")] = ""
    user: Annotated[str, Meta(description="The job's owner.")] = ""
    cluster: Annotated[str, Meta(description="Slurm's name of its cluster; empty if unknown.")] = ""
    nodes: Annotated[tuple[str, ...], Meta(description="Names of its nodes, in order.")] = ()
    opened_at: Annotated[Moment | None, Meta(description="Time of its start.")] = None
    kill_switch_path: Annotated[str, Meta(description="Path at which its trainer checks the kill switch.")] = ""
    kill_switch_inode: Annotated[
        int | None,
        Meta(description="Inode of the folder that path is in, the same after a move; null if not recorded."),
    ] = None
    iteration_at_start: Annotated[
        int | None, Meta(description="Iteration of the last whole checkpoint then; null without one.")
    ] = None
    restart: Annotated[
        int, Meta(description="How many earlier attempts its job made; 0 for the first attempt of a job.")
    ] = 0
    fewer_nodes: Annotated[
        int | None, Meta(description="Number of nodes that it trains on, if fewer than the run's; else null.")
    ] = None


class Attempt(Opening, frozen=True, kw_only=True):
    """One attempt of an array task, from opening to closing. `reason` is None while it is open."""

    number: Annotated[int, Meta(description="1 for the run's first.")]
    closed_at: Annotated[Moment | None, Meta(description="When it ended.")] = None
    closed_by: Annotated[str, Meta(description="`job`, or the user who closed it; empty while it is open.")] = ""
    #: An Ending, or a value of another release.
    reason: Annotated[str | None, Meta(description="Why it ended; null while it is open.")] = None
    exit_code: Annotated[int | None, Meta(description="The job's exit code.")] = None
    signal: Annotated[int | None, Meta(description="Number of the signal that ended it.")] = None
    iteration_at_end: Annotated[
        int | None, Meta(description="The last iteration by the trainer, else the last checkpoint's.")
    ] = None
    checkpoint_at_end: Annotated[
        int | None, Meta(description="Iteration of the last whole checkpoint when it ended.")
    ] = None
    first_failure: Annotated[Failure | None, Meta(description="The rank that failed first.")] = None
    other_failures: Annotated[tuple[Failure, ...], Meta(description="The ranks that failed after it.")] = ()
    error_files: Annotated[tuple[str, ...], Meta(description="Paths of the elastic error files that were kept.")] = ()
    lost_nodes: Annotated[tuple[str, ...], Meta(description="Names of nodes that Slurm lost.")] = ()
    ranks: Annotated[tuple[RankPlace, ...], Meta(description="Places of the ranks.")] = ()
    note: Annotated[str, Meta(description="Further information on the end.")] = ""
    environment: Annotated[str, Meta(description="Digest of its environment; empty if not recorded.")] = ""
    verdict: Annotated[Verdict | None, Meta(description="Verdict on a failure; else null.")] = None
    stacks: Annotated[
        tuple[StackGroup, ...], Meta(description="Stacks of the ranks of a hung step at its end, in groups.")
    ] = ()

    @property
    def is_open(self) -> bool:
        """Return True until a closing is recorded, even if the job died without one."""
        return self.reason is None

    @property
    def display_id(self) -> str:
        """Return the job id as squeue shows it."""
        return f"{self.array_job_id}_{self.array_task}" if self.array_task else str(self.job_id)

    @property
    def job_and_restart(self) -> str:
        """Return the job id as squeue shows it, which restart in the job this is, and on how many nodes if on fewer."""
        restart = f"restart {self.restart}" if self.restart else ""
        said = ", ".join(filter(None, (restart, f"on {self.fewer_nodes} nodes" if self.fewer_nodes else "")))
        return f"{self.display_id} ({said})" if said else self.display_id

    @property
    def made_checkpoint(self) -> bool:
        """Return True if the latest complete checkpoint at its end differs from the one at its start."""
        return self.checkpoint_at_end is not None and self.checkpoint_at_end != self.iteration_at_start


class Event(Attempt, frozen=True, kw_only=True):
    """A line of the file: an opening has the fields of Opening, a closing its id and the other fields of Attempt."""

    event: str
    job_id: int = 0
    number: int = 0


_OPENING = Opening.__struct_fields__
_CLOSING = tuple(name for name in Attempt.__struct_fields__ if name not in (*_OPENING, "number"))


def fold(events: Iterable[Event]) -> list[Attempt]:
    """Return the attempts in the order they were opened. The job's own last closing counts, else the first."""
    attempts: dict[str, Attempt] = {}
    for event in events:
        known = attempts.get(event.id)
        if event.event == OPENED and known is None and event.job_id:
            attempts[event.id] = Attempt(number=len(attempts) + 1, **_fields(event, _OPENING))
        elif known is None or event.event != CLOSED or event.reason is None:
            continue
        elif known.is_open or event.closed_by == "job":
            attempts[event.id] = msgspec.structs.replace(known, **_fields(event, _CLOSING))
    return list(attempts.values())


def read(paths: RunPaths) -> list[Attempt]:
    """Return the run's attempts; empty without a file."""
    return fold(read_lines(paths.output, paths.attempts, Event))


def append_opened(paths: RunPaths, attempt: Attempt) -> None:
    """Append the opening of `attempt`; its number is its place in the file."""
    make_folder(paths.output, paths.state)
    append_state(paths.output, paths.attempts, {"event": OPENED, **_fields(attempt, _OPENING)})


def append_closed(paths: RunPaths, attempt: Attempt) -> None:
    """Append the closing of `attempt`, including its reason."""
    make_folder(paths.output, paths.state)
    append_state(paths.output, paths.attempts, {"event": CLOSED, "id": attempt.id, **_fields(attempt, _CLOSING)})


def _fields(attempt: Attempt, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(attempt, name) for name in names}
