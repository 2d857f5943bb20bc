"""The records of evaluations: which checkpoint, by which user, with which result; and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import append_state, make_folder, read_lines
from opsctl.run.checkpoints.backups import digest_here, divides, folders_oldest_first, manifest_or_fault
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import EvaluationTable
from trainer.formats.checkpoint.manifest import iteration_of, tag_of
from trainer.formats.json_text import Moment

#: How often the schedule tries one checkpoint. --step has no such limit.
MOST_TRIES = 3
#: How long a job counts as asked for where Slurm does not show whether it is there: others' jobs may be hidden.
BELIEVED = timedelta(days=2)

#: "withdrawn": it was asked for, and Slurm did not take it.
What = Literal["asked", "withdrawn", "begun", "done", "failed"]


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `.opsctl/evaluations.jsonl`."""

    iteration: int
    what: What
    of: str = ""  # checksum of the checkpoint's manifest: saved again it is another one
    at: Moment
    by: str = ""  # user@host
    errand: str = ""  # of the job; empty where it was typed
    job_id: int = 0
    tasks: int = 0  # that were wanted
    answered: int = 0  # of them
    detail: str = ""  # what failed, or is missing


@dataclass(frozen=True)
class Standing:
    """The state of a checkpoint's evaluation."""

    last: Evaluated | None = None  # the newest line that says what became of it
    asked: Evaluated | None = None  # the newest job that was asked for and did not begin yet
    tries: int = 0  # that began since it was last done

    @property
    def is_done(self) -> bool:
        """Return whether there is nothing left to do."""
        return self.last is not None and self.last.what == "done"

    @property
    def detail(self) -> str:
        """The tasks that the newest record reports as missing or failed."""
        return self.last.detail if self.last is not None else ""

    @property
    def under_way(self) -> Evaluated | None:
        """The line of the job that is queued, or that began and recorded no end."""
        if self.asked is not None:
            return self.asked
        return self.last if self.last is not None and self.last.what == "begun" and self.last.errand else None

    @property
    def is_given_up(self) -> bool:
        """Return whether the schedule leaves it alone: it was tried often enough."""
        return not self.is_done and self.tries >= MOST_TRIES


def append(paths: RunPaths, line: Evaluated) -> None:
    """Put it on record. Raises OSError."""
    make_folder(paths.output, paths.state)
    append_state(paths.output, paths.evaluations, line)


def read(paths: RunPaths) -> list[Evaluated]:
    """All on record, oldest first. Raises OSError where they cannot be read."""
    return read_lines(paths.output, paths.evaluations, Evaluated)


def standing(lines: Sequence[Evaluated], iteration: int, of: str) -> Standing:
    """Return the state of this save of `iteration`. Several starts of one job are one try."""
    last, asked = None, None
    tries: list[str] = []
    for number, line in enumerate(lines):
        if line.iteration != iteration or line.of != of:
            continue
        if line.what == "asked":
            asked = line
            continue
        if asked is not None and (asked.errand == line.errand or line.what == "done"):
            asked = None
        if line.what == "withdrawn":
            continue
        last = line
        if line.what == "done":
            tries = []
        elif line.what == "begun" and (key := line.errand or f"typed {number}") not in tries:
            tries.append(key)
    return Standing(last, asked, len(tries))


@dataclass(frozen=True)
class Due:
    """A checkpoint that is to be evaluated."""

    iteration: int
    of: str  # checksum of its manifest


@dataclass(frozen=True)
class Chosen:
    """The checkpoints to evaluate, and those left out with the reason, by iteration."""

    due: tuple[Due, ...] = ()
    left: tuple[tuple[int, str], ...] = ()
    done: tuple[tuple[int, str], ...] = ()  # with what was missing of it


def choose(paths: RunPaths, table: EvaluationTable, named: int | None, again: bool = False) -> Chosen:
    """Choose checkpoints by the schedule, or the named one regardless of the schedule.

    again: also those that are done. Raises OpsctlError if the named one does not exist, or it cannot be seen.
    """
    lines, due, left, done = lines_of(paths), list[Due](), list[tuple[int, str]](), list[tuple[int, str]]()
    scheduled = (iteration_of(folder.name) or 0 for folder in folders_oldest_first(paths.checkpoints))
    for iteration in [one for one in scheduled if divides(table.every, one)] if named is None else [named]:
        folder = paths.checkpoints / tag_of(iteration)
        found, of = manifest_or_fault(folder), digest_here(folder)
        if isinstance(found, str) or of is None:
            why = found if isinstance(found, str) else "it is gone"
            if named is not None:
                raise OpsctlError(f"{tag_of(named)} cannot be evaluated: {why}")
            left.append((iteration, why))
            continue
        state = standing(lines, iteration, of)
        if state.is_done and not again:
            done.append((iteration, state.detail))
        elif state.is_given_up and not again and named is None:
            how_often = f"tried {MOST_TRIES} times ({state.detail or 'cut off'})"
            left.append((iteration, f"{how_often}: opsctl evaluate --step {iteration} tries again"))
        else:
            due.append(Due(iteration, of))
    return Chosen(tuple(due), tuple(left), tuple(done))


def lines_of(paths: RunPaths) -> list[Evaluated]:
    """Return the recorded lines. Raises OpsctlError if they cannot be read."""
    try:
        return read(paths)
    except OSError as error:
        raise OpsctlError(f"nothing is evaluated: {file_problem(error, paths.evaluations)}") from None
