"""Asking every rank of a job where it is: one short task on each node, beside the training's."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import write_atomically
from opsctl.core.process import Overdue, find_program, run_program
from opsctl.diagnosis.hangs import summary
from opsctl.diagnosis.hangs.grouping import Group, flight_summary, grouped
from opsctl.jobs.runner.task import Task
from trainer.formats.attempt.error_file import GroupProgress, RankStack, joined
from trainer.formats.tolerant import decode

#: How long ranks are given to answer on their node, and Slurm to run what asks them, seconds.
RANKS_WAIT_S = 5.0
STEP_WAIT_S = 60.0


@dataclass(frozen=True)
class Taken:
    """The stacks of a job's ranks."""

    stacks: tuple[RankStack, ...]  # in order of rank
    progress: tuple[GroupProgress, ...]  # where NCCL's flight recorders run
    ranks: int  # how many there are to be

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Ranks at the same place; what the others wait for first."""
        return grouped(self.stacks)

    @property
    def shows_all(self) -> bool:
        """Return whether every rank was found, and is known to be at some place or unable to go on."""
        return len({one.rank for one in self.stacks}) >= self.ranks and all(one.place.is_known for one in self.groups)

    @property
    def flight(self) -> str:
        """A sentence from NCCL's flight recorders; empty without any."""
        return flight_summary(self.progress)

    @property
    def sentence(self) -> str:
        """All of it in a line."""
        return "; ".join(filter(None, (self.flight, summary.described(self.groups, self.ranks))))


def beside_the_training(nodes: int, job_id: int | None = None, only_on: Sequence[str] = ()) -> list[str]:
    """Return srun's words for one task on each node, on processors that the training's step uses too."""
    return [
        "srun",
        "--overlap",
        *([f"--jobid={job_id}"] if job_id is not None else []),
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        *([f"--nodelist={','.join(only_on)}"] if only_on else []),
        "--cpus-per-task=1",
        "--mpi=none",
        "--export=ALL",
    ]


def command(
    nodes: int,
    *,
    job_id: int | None = None,
    only_on: Sequence[str] = (),
    native: bool = False,
    flights_in: Path | None = None,
) -> list[str]:
    """Return the srun command. job_id: of another job of this account than the one that this process is in.

    only_on: see `Launch.only_on`. It runs this Python, which needs none of the training's packages.
    """
    return [
        *beside_the_training(nodes, job_id, only_on),
        sys.executable,
        "-P",
        "-m",
        "trainer.launcher.stacks",
        "--wait-s",
        f"{RANKS_WAIT_S:g}",
        *(["--native"] if native else []),
        *(["--flights-under", str(flights_in)] if flights_in is not None else []),
    ]


def take_stacks(words: list[str], ranks: int, environment: Mapping[str, str]) -> Taken:
    """Return the stacks of all ranks that answer; `words` is `command`. Raises OpsctlError if none does."""
    srun, *rest = words
    path = find_program(srun, environment)
    if path is None:
        raise OpsctlError("srun cannot be started: it is not on PATH")
    try:
        ended = run_program([path, *rest], environment, STEP_WAIT_S)
        out, err = ended.out, ended.err.decode(errors="replace")
    except Overdue as late:  # a node that hangs keeps srun waiting: the others have told theirs
        out, err = late.out, f"no answer of all nodes within {STEP_WAIT_S:.0f} s"
    except OSError as error:
        raise OpsctlError(f"srun cannot be started: {error.strerror}") from None
    lines = out.splitlines()
    progress = [found for line in lines if (found := decode(line, GroupProgress)) is not None]
    stacks = [one for line in lines if b'"group":' not in line and (one := decode(line, RankStack)) is not None]
    if not stacks:
        why = next((line.strip() for line in err.splitlines() if line.strip()), "nothing was printed")
        raise OpsctlError(f"no rank printed its stack: {why}")
    return Taken(tuple(joined(stacks)), tuple(progress), ranks)


def taken_of(task: Task) -> Taken:
    """Return the stacks of the task's ranks. Raises OpsctlError."""
    nodes = len(task.nodes)
    environment = {**os.environ, **task.cluster.additions(dict(os.environ))}
    only_on = task.nodes if task.picked or task.spare else ()
    words = command(nodes, only_on=only_on, flights_in=task.paths.attempt_folder(task.allocation.job_id))
    return take_stacks(words, nodes * task.revision.file.slurm.gpus_per_node, environment)


def stacks_into(path: Path, task: Task) -> tuple[Taken, str]:
    """Take the stacks of the task's ranks into the file `path`; with what was found, in a sentence.

    Raises OpsctlError.
    """
    taken = taken_of(task)
    try:
        write_atomically(task.paths.output, path, summary.written(taken.stacks))
    except OSError as error:
        return taken, f"{taken.sentence}; {path}: {error.strerror}"
    return taken, f"{taken.sentence}; all of it: {path}"
