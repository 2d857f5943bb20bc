"""What a chain is asked for with, checked before anything is touched or any Slurm asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from opsctl.checkpoints.resumption import resumption_problem
from opsctl.errors import RunFileError, UsageError
from opsctl.logs.parser import measured
from opsctl.planning.measured import with_measured
from opsctl.records.revisions import contents
from opsctl.runs.checks import check_run
from opsctl.runs.load import LoadedRun, expand
from opsctl.runs.trainer_arguments import NOT_A_CHAINS, layout_of, trainer_arguments
from opsctl.slurm.arrays import one_at_a_time
from trainer.recipe.options import BY_KEY, OptionsError, given, parse


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


def check(loaded: LoadedRun, wish: Wish, files: bool = True) -> tuple[Wish, list[str]]:
    """The wish with its array filled in, and warnings. Raises RunFileError and UsageError for what cannot run.

    files: False lets a run through whose data is not here, with a warning.
    """
    wish = replace(wish, array=one_at_a_time(wish.array or loaded.file.array.tasks))
    asked = with_nodes(loaded, wish.nodes)
    warnings = check_run(with_measured(asked, measured(asked.paths)), wish.nodes, files)
    contents(asked)
    check_arguments(asked, wish.arguments)
    refused = resumption_problem(expand(asked), wish.arguments)
    if refused and files:
        raise RunFileError(f"{loaded.path}: the trainer would not go on with it: {refused}")
    return wish, [*warnings, *([refused] if refused else [])]


def with_nodes(loaded: LoadedRun, nodes: int | None) -> LoadedRun:
    """`loaded` as it is on `nodes` nodes instead of its own. Raises UsageError for fewer than one."""
    if nodes is None:
        return loaded
    if nodes < 1:
        raise UsageError(f"--nodes {nodes}: allowed is 1 or more")
    return replace(
        loaded, file=msgspec.structs.replace(loaded.file, slurm=msgspec.structs.replace(loaded.file.slurm, nodes=nodes))
    )


def check_arguments(loaded: LoadedRun, arguments: Sequence[str]) -> None:
    """Raise UsageError for one-off trainer arguments that are unknown, wrong, or the run's own to set."""
    if not arguments:
        return
    world_size = layout_of(loaded).world_size
    try:
        for key in given(arguments):
            if key in NOT_A_CHAINS:
                raise UsageError(f"{BY_KEY[key].name} belongs to the run, not to one chain: leave it out")
        parse([*trainer_arguments(expand(loaded)), *arguments], world_size)
    except OptionsError as error:
        raise UsageError(f"after --: {error}") from None
