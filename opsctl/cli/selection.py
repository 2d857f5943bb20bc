"""Options that many commands share, and the run and cluster they choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from opsctl.run.state.run_view import RunView

#: For a local cluster to answer whether it is up.
_LOCAL_CLUSTER_S = 2.0
_RUN_KEY, _ALL_KEY = "opsctl.run_argument", "opsctl.all_runs"
_REST_KEY = "opsctl.rest"
Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")


def run_option(function: Function) -> Function:
    """Add `--run`: a name, a run file or its folder; without it `$OPSCTL_RUN`, then `./run.toml`."""
    what = "The run: a name, a run file or its folder [default: $OPSCTL_RUN, ./run.toml]."
    return click.option("--run", "run", metavar="RUN", callback=_one_run, help=what)(function)


def run_argument(function: Function, metavar: str = "[RUN]") -> Function:
    """Add `[RUN]` as an argument, and `--run`. The command receives the given one of them as `run`."""
    argument = click.argument(
        "run_argument", metavar=metavar, required=False, is_eager=True, expose_value=False, callback=_keep_run
    )
    return argument(run_option(function))


def _keep_run(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    ctx.meta[_RUN_KEY] = value


def _one_run(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    given = ctx.meta.get(_RUN_KEY)
    if given and value and given != value:
        raise click.UsageError(f"two runs given: {given} and --run {value}")
    _refuse_both(ctx, run := given or value)
    return run


def folders_that_answer(folders: Iterable[Path]) -> list[Path]:
    """Return `folders`, absolute. Raises OpsctlError if a file system hangs, because reading it would hang too."""
    from opsctl.core.dirwalk.file_system import refuse_what_hangs

    found = [folder.absolute() for folder in folders]
    refuse_what_hangs(*found)
    return found


def cluster_option(function: Function) -> Function:
    """`--cluster`: a local cluster's name or folder."""
    where = "[default: where the run was submitted, else this host's Slurm]"
    return click.option("--cluster", metavar="NAME", help=f"A local cluster's name or folder {where}.")(function)


#: What a command prints under a key of `--json`: the name of a struct, or `list[NAME]`; with it, when it does.
Shape = str | tuple[str, str]


class JsonOption(click.Option):
    """The option `--json` and the shapes of what it prints, by their keys."""

    def __init__(self, *args: Any, shapes: dict[str, Shape | list[Shape]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.shapes = [
            (key, *((one, "") if isinstance(one, str) else one))
            for key, several in shapes.items()
            for one in (several if isinstance(several, list) else [several])
        ]


def json_option(**shapes: Shape | list[Shape]) -> Callable[[Function], Function]:
    """Add `--json`. shapes: key -> what is printed under it; `opsctl json-schema` and the JSON page list them."""
    what = "Print JSON with schema_version."
    return click.option("--json", "as_json", cls=JsonOption, is_flag=True, shapes=shapes, help=what)


def all_runs_option(function: Function) -> Function:
    """`--all-runs`: those of the cron folder's list and those that this account has used; in place of one run."""
    what = "All runs that you made or submitted, and those that the group's cron watches."
    return click.option("--all-runs", is_flag=True, callback=all_or_one, help=what)(function)


def all_or_one(ctx: click.Context, option: click.Parameter, value: bool) -> bool:
    """Raise click.UsageError if both all runs and one run are chosen; the callback of an option for all runs."""
    ctx.meta[_ALL_KEY] = option.opts[0] if value else None
    _refuse_both(ctx, ctx.params.get("run") or ctx.meta.get(_RUN_KEY))
    return value


def _refuse_both(ctx: click.Context, run: str | None) -> None:
    if run and (flag := ctx.meta.get(_ALL_KEY)):
        raise click.UsageError(f"{flag} cannot be combined with a run ({run})")


def fresh_option(function: Function) -> Function:
    """`--fresh`."""
    what = "Ask Slurm now; do not use an answer that an earlier command has cached."
    return click.option("--fresh", is_flag=True, help=what)(function)


def local_cluster_option() -> str:
    """Return ` --cluster NAME` for the only local cluster of this account that is up; empty without one."""
    import shlex

    from opsctl.local.cluster.status import known_folders, status_of

    up = [folder.name for folder in known_folders() if status_of(folder, _LOCAL_CLUSTER_S).state == "up"]
    return f" --cluster {shlex.quote(up[0])}" if len(up) == 1 else ""


def terminal() -> tuple[int, bool]:
    """Columns to fill, and whether colours are wanted."""
    import os
    import shutil
    import sys

    is_terminal = sys.stdout.isatty()
    colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return shutil.get_terminal_size().columns if is_terminal else 100, colour


def moment_ahead(text: str, now: datetime) -> datetime:
    """When `text` is: a time of day, a date with one, or so long from now. Raises click.UsageError."""
    from datetime import time, timedelta

    from opsctl.slurm.durations import parse_duration_s

    end = None
    try:
        if len(text) == 5 and text[2] == ":":
            at = datetime.combine(now.date(), time.fromisoformat(text)).astimezone()
            end = at if at > now else at + timedelta(days=1)
        elif "T" in text:
            end = datetime.fromisoformat(text).astimezone()
        else:
            end = now + timedelta(seconds=parse_duration_s(text))
    except (ValueError, OverflowError):
        end = None
    if end is None or not now < end < now + timedelta(days=60):
        raise click.UsageError(
            f"until {text!r}: expected 18:00, 2026-03-02T18:00 or a Slurm duration such as 2:00:00, within 60 days"
        )
    return end


class CommandWithRest(click.Command):
    """A command that keeps the words after `--` apart from its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give click the words before the first `--`; without one, `rest()` is empty."""
        if "--" in args:
            place = args.index("--")
            args, ctx.meta[_REST_KEY] = args[:place], tuple(args[place + 1 :])
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Add `[-- TRAINER_ARGUMENT...]` to click's line."""
        pieces: list[Any] = self.collect_usage_pieces(ctx)
        formatter.write_usage(ctx.command_path, " ".join([*pieces, "[-- TRAINER_ARGUMENT...]"]))


def rest() -> tuple[str, ...]:
    """Return the words after `--`."""
    found: tuple[str, ...] = click.get_current_context().meta.get(_REST_KEY, ())
    return found


def each_run(
    is_wanted: Callable[[RunView], bool], left: Callable[[str, Exception], None] | None = None
) -> Iterator[tuple[str, RunView]]:
    """Yield (name, run) of every run that this account may act for and that `is_wanted`.

    A run that is gone, broken or closed is passed to `left` and stops no other: the checks of all runs report it.
    """
    from opsctl.core.errors import OpsctlError
    from opsctl.core.output import message
    from opsctl.run.state.register import all_runs, may_act_for, paths_of
    from opsctl.run.state.run_view import view_known

    for known in all_runs():
        try:
            paths = paths_of(known)
            seen = view_known(Path(known.run_file), paths.output)
            if not (may_act_for(known, paths) and is_wanted(seen)):
                continue
        except (OpsctlError, OSError) as error:
            message(f"{known.name}: left alone: {error}")
            if left is not None:
                left(known.name, error)
            continue
        yield known.name, seen


def for_runs(
    run: str | None,
    all_runs: bool,
    is_wanted: Callable[[RunView], bool],
    act: Callable[[RunView], list[T]],
    left: Callable[[str, Exception], T] | None = None,
) -> tuple[list[T], bool]:
    """Return what `act` returned for one run, or for every run that `is_wanted`, and whether none failed.

    With all runs, a run that fails is reported and stops no other; `left` makes its entry in the list.
    """
    from opsctl.core.errors import OpsctlError
    from opsctl.core.output import message
    from opsctl.run.state.run_view import view

    if not all_runs:
        return act(view(run)), True
    done, is_well = list[T](), True

    def failed(name: str, error: Exception) -> None:
        done.extend([left(name, error)] if left else [])

    for name, seen in each_run(is_wanted, failed):
        try:
            done += act(seen)
        except (OpsctlError, OSError) as error:
            is_well = False
            message(f"{name}: {error}")
            failed(name, error)
    return done, is_well
