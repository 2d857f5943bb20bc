"""Every rank's Python stack, and in a few words where they all are."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from opsctl.errors import OpsctlError
from opsctl.job.node_python import launchers_python
from opsctl.job.task import Task
from opsctl.programs import Overdue, find_program, run_program
from opsctl.records.state_files import write_atomically
from trainer.formats.rank_stacks import RankStack, joined
from trainer.formats.tolerant import decode

#: How long ranks are given to answer on their node, and Slurm to run what asks them, seconds.
RANKS_WAIT_S = 5.0
STEP_WAIT_S = 60.0
#: Innermost frames that are told of a stack, and groups of ranks that are told at all.
_FRAMES, _GROUPS = 3, 4
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
#: What a process state without an answer means.
_STATES = {"T": "stopped", "t": "stopped", "D": "waits for the disk", "Z": "dead", "gone": "gone"}


def command(python: Sequence[str], nodes: int) -> list[str]:
    """The srun line: one short task on each node, beside the training's."""
    return [
        "srun",
        "--overlap",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--mpi=none",
        "--export=ALL",
        *python,
        "-m",
        "trainer.stacks",
        "--wait-s",
        f"{RANKS_WAIT_S:g}",
    ]


def take_stacks(python: Sequence[str], nodes: int, environment: Mapping[str, str]) -> list[RankStack]:
    """The stacks of all ranks that could be asked, in order. Raises OpsctlError where there is none."""
    srun, *words = command(python, nodes)
    path = find_program(srun, environment)
    if path is None:
        raise OpsctlError("srun cannot be started: it is not on PATH")
    try:
        ended = run_program([path, *words], environment, STEP_WAIT_S)
        out, err = ended.out, ended.err.decode(errors="replace")
    except Overdue as late:  # a node that hangs keeps srun waiting: the others have told theirs
        out, err = late.out, f"no answer of all nodes within {STEP_WAIT_S:.0f} s"
    except OSError as error:
        raise OpsctlError(f"srun cannot be started: {error.strerror}") from None
    found = [stack for line in out.splitlines() if (stack := decode(line, RankStack)) is not None]
    if not found:
        why = next((line.strip() for line in err.splitlines() if line.strip()), "nothing was printed")
        raise OpsctlError(f"no rank has told its stack: {why}")
    return joined(found)


def stacks_into(path: Path, task: Task) -> str:
    """Take the stacks of the task's ranks into the file `path`; what was found, in a sentence. Raises OpsctlError."""
    nodes, file = len(task.allocation.nodes), task.revision.file
    environment = {**os.environ, **task.cluster.additions(dict(os.environ))}
    found = take_stacks(launchers_python(file.run.environment), nodes, environment)
    words = described(found, nodes * file.slurm.gpus_per_node)
    try:
        write_atomically(task.paths.output, path, written(found))
    except OSError as error:
        return f"{words}; {path}: {error.strerror}"
    return f"{words}; all of it: {path}"


def written(stacks: Sequence[RankStack]) -> str:
    """All of them, for people who read the file."""
    return "".join(
        f"=== rank {one.rank} on {one.node}, pid {one.pid}, state {one.state}\n{one.text.rstrip() or 'no answer'}\n\n"
        for one in stacks
    )


def described(stacks: Sequence[RankStack], ranks: int) -> str:
    """`7 of 8 ranks in all_reduce < reason < _steps; rank 3 (stopped) did not answer`. Pure.

    ranks: how many there are to be. The main thread's innermost frames tell where a rank is.
    """
    groups: dict[str, list[int]] = {}
    for one in stacks:
        groups.setdefault(place(one), []).append(one.rank)
    shown = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
    said = [f"{_ranks(found, ranks)} {where}" for where, found in shown[:_GROUPS]]
    if shown[_GROUPS:]:
        said.append(f"{sum(len(found) for _, found in shown[_GROUPS:])} elsewhere")
    silent = ranks - len(stacks)
    if silent > 0:
        said.append(f"{silent} of {ranks} ranks not found")
    return "; ".join(said)


def place(one: RankStack) -> str:
    """Where a rank is: `in all_reduce < reason < _steps`, or why that is not known. Pure."""
    main = re.split(r"^(?:Current thread|Thread) .*$", one.text, flags=re.MULTILINE)[-1]
    frames = [match["function"] for match in _FRAME.finditer(main)]
    if frames:
        return f"in {' < '.join(frames[:_FRAMES])}"
    return f"did not answer ({_STATES.get(one.state, f'process state {one.state}')})"


def _ranks(found: Sequence[int], ranks: int) -> str:
    return f"rank {found[0]}" if len(found) == 1 else f"{len(found)} of {ranks} ranks"
