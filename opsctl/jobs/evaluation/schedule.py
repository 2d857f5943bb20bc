"""Which checkpoints are to be evaluated: what is here, what is on record, what the run file says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.jobs.evaluation.records import MOST_TRIES, Evaluated, read, standing
from opsctl.run.checkpoints.backups import digest_here, divides, folders_oldest_first, manifest_or_fault
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import EvaluationTable
from trainer.formats.checkpoint.manifest import iteration_of, tag_of


@dataclass(frozen=True)
class Due:
    """A checkpoint that is to be evaluated."""

    iteration: int
    of: str  # checksum of its manifest


@dataclass(frozen=True)
class Chosen:
    """What is to be done, and what is not and why, by iteration."""

    due: tuple[Due, ...] = ()
    left: tuple[tuple[int, str], ...] = ()
    done: tuple[tuple[int, str], ...] = ()  # with what was missing of it


def choose(paths: RunPaths, table: EvaluationTable, named: int | None, again: bool = False) -> Chosen:
    """By the schedule, or the one that is named, whatever the schedule says of it.

    again: also where it is done. Raises OpsctlError where the named one is not there, or nobody can see.
    """
    lines = lines_of(paths)
    if named is not None:
        folder = paths.checkpoints / tag_of(named)
        found = manifest_or_fault(folder)
        of = digest_here(folder)
        if isinstance(found, str) or of is None:
            raise OpsctlError(
                f"{tag_of(named)} cannot be evaluated: {found if isinstance(found, str) else 'it is gone'}"
            )
        stands = standing(lines, named, of)
        if stands.is_done and not again:
            return Chosen(done=((named, stands.detail),))
        return Chosen((Due(named, of),))
    return _by_schedule(paths, table, lines, again)


def lines_of(paths: RunPaths) -> list[Evaluated]:
    """What is on record. Raises OpsctlError where nobody can read it."""
    try:
        return read(paths)
    except OSError as error:
        raise OpsctlError(f"nothing is evaluated: {file_problem(error, paths.evaluations)}") from None


def _by_schedule(paths: RunPaths, table: EvaluationTable, lines: Sequence[Evaluated], again: bool) -> Chosen:
    due: list[Due] = []
    left: list[tuple[int, str]] = []
    done: list[tuple[int, str]] = []
    for folder in folders_oldest_first(paths.checkpoints):
        iteration = iteration_of(folder.name) or 0
        if not divides(table.every, iteration):
            continue
        found, of = manifest_or_fault(folder), digest_here(folder)
        if isinstance(found, str) or of is None:
            left.append((iteration, found if isinstance(found, str) else "it is gone"))
            continue
        stands = standing(lines, iteration, of)
        if stands.is_done and not again:
            done.append((iteration, stands.detail))
        elif stands.is_given_up and not again:
            why = stands.last.detail if stands.last and stands.last.detail else "cut off"
            left.append(
                (iteration, f"tried {MOST_TRIES} times ({why}): opsctl evaluate --step {iteration} tries again")
            )
        else:
            due.append(Due(iteration, of))
    return Chosen(tuple(due), tuple(left), tuple(done))
