"""`opsctl env`: the Python environment of a run: build it, check it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import json_option, run_argument
from opsctl.core.output import message, print_json, show, show_lines
from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.run.config.locate import locate_run_file
from opsctl.run.environments import inspection
from opsctl.run.environments.building import BuiltEnvironment, planned
from opsctl.run.environments.building import build as build_environment
from opsctl.run.environments.recipe import LOCK, recipe_of


@click.group()
def command() -> None:
    """Build and check the Python environment of a run."""


@command.command("build", cls=LongCommand, internet=True)
@run_argument
@click.option("--offline", is_flag=True, help="Use only files that an earlier build has downloaded.")
@click.option("--again", is_flag=True, help="Build even if an identical environment is in use.")
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@json_option(built="opsctl.run.environments.building.BuiltEnvironment")
def build(run: str | None, offline: bool, again: bool, dry_run: bool, as_json: bool) -> None:
    """Build the Python environment of [environment].

    It is built next to the current one, and checked before it replaces that one. Running jobs keep theirs; the next job
    of the run uses the new one. After a killed build, repeat the command; downloaded files are used again. [run]
    environment names the script activate.sh in its folder.
    """
    loaded = load_run_file(locate_run_file(run))
    recipe = recipe_of(loaded)
    if dry_run:
        show_lines(planned(recipe, offline, again))
        return
    done = build_environment(recipe, offline, again, lambda words: message(f"{loaded.file.run.name}: {words}"))
    if not done.is_new:
        message(f"nothing to do: {done.folder} was built from the same; --again builds another")
    else:
        message(f"older ones in {recipe.places.built}: remove those that no job uses")
    named = loaded.file.run.environment
    if named is None or loaded.folder / named != recipe.places.activate:
        message(f'next: under [run] write environment = "{recipe.places.activate}"')
    if done.is_new:
        message("compiled operations for its torch: opsctl kernels build, in that environment")
    if as_json:
        answer = BuiltEnvironment(folder=str(done.folder), new=done.is_new, lock=str(done.folder / LOCK))
        print_json("built", answer)
    else:
        show(str(done.folder))


@command.command("check")
@run_argument
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Compare with this lock file, or with the environment.json of a build or an attempt.",
)
@click.option("--trust", is_flag=True, help="Start the run's environment script although other users can change it.")
@json_option(checked="opsctl.run.environments.inspection.CheckedEnvironment")
@click.pass_context
def check(ctx: click.Context, run: str | None, against: Path | None, trust: bool, as_json: bool) -> None:
    """Check the run's environment and print its differences.

    It is compared with FILE, with the last env build, or with the requirements of [environment]. Its modules are
    imported. If the next step does not use the environment that was built, only this reason is printed. Exits with 1 if
    there are differences. On a node: opsctl shell, or srun --overlap --jobid JOB opsctl env check.
    """
    loaded = _at_hand(run)
    checked = inspection.check_run(loaded, against, trust)
    if as_json:
        print_json("checked", checked)
    else:
        for one in checked.problems:
            show(f"{one.kind}: {one.text}" + (f" [{one.todo}]" if one.todo else ""))
        what = f"compared with {checked.held_against}" if checked.held_against else "compared with nothing: give a FILE"
        message(f"{checked.python or 'no Python'} on {checked.host}, {what}; other hosts were not checked")
    ctx.exit(1 if checked.problems else 0)


def _at_hand(chosen: str | None) -> LoadedRun | None:
    """Return the chosen run; None if none is named and none is here."""
    if chosen is None and not os.environ.get("OPSCTL_RUN") and not Path("run.toml").exists():
        return None
    return load_run_file(locate_run_file(chosen))
