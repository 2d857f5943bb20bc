"""What a chain is asked for with, checked before anything is touched or any Slurm asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opsctl.core.account import membership_problem
from opsctl.core.errors import RunFileError, UsageError
from opsctl.jobs.control.fused_kernels import unbuilt_kernels
from opsctl.run.checkpoints.resumption import resumption_problem
from opsctl.run.config.checks import check_run
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import LoadedRun
from opsctl.run.logs.measurements import measured
from opsctl.run.planning.measured_speed import with_measured
from opsctl.run.state.revisions import contents, is_published, refuse_to_publish
from opsctl.slurm.arrays import one_at_a_time


@dataclass(frozen=True)
class Wish:
    """What `opsctl submit` was asked for."""

    array: str | None = None  # None: the run file's
    after: str | None = None  # "auto" or a job id
    begin: str | None = None
    exclude: str | None = None
    nodes: int | None = None
    arguments: tuple[str, ...] = ()
    hold: bool = False


@dataclass(frozen=True)
class Checked:
    """A wish that can be carried out."""

    wish: Wish  # its array filled in
    run: ExpandedRun  # what is published
    chain: ExpandedRun  # what the chain trains: the same, on its own nodes and with its one-off arguments
    warnings: tuple[str, ...]


def check(loaded: LoadedRun, wish: Wish, files: bool = True) -> Checked:
    """Everything that can be known beforehand.

    Raises RunFileError and UsageError for what cannot run, OpsctlError where only the run's owner may publish it.

    files: False lets a run through whose data, group or checkpoint is not here, with a warning.
    """
    if wish.nodes is not None and wish.nodes < 1:
        raise UsageError(f"--nodes {wish.nodes}: allowed is 1 or more")
    array = one_at_a_time(wish.array or loaded.file.array.tasks)
    expect = with_measured(loaded.file.expect, measured(loaded.paths))
    asked, warnings = check_run(loaded, wish.nodes, files, expect)
    run, chain = asked.on(None), asked.with_arguments(wish.arguments)
    contents(run)
    if files and not is_published(run):
        refuse_to_publish(run)
    found = _problems(chain)
    if found and files:
        raise RunFileError(f"{loaded.path}: {found[0]}")
    return Checked(replace(wish, array=array), run, chain, (*warnings, *found))


def _problems(chain: ExpandedRun) -> list[str]:
    """What only a look at this machine and at the checkpoints shows."""
    group, found = chain.file.run.group, []
    if group is not None and (problem := membership_problem(group)):
        found.append(problem)
    if refused := resumption_problem(chain):
        found.append(f"the trainer would not go on with it: {refused}")
    if unbuilt := unbuilt_kernels(chain):
        found.append(unbuilt)
    return found
