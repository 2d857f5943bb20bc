"""`opsctl kill-switch`: a file that makes a training save and leave, whoever's job it is. Needs no Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opsctl.cli.selection import json_option, pick, run_argument

if TYPE_CHECKING:
    from opsctl.records.kill_switch import Change, KillSwitchState
    from opsctl.runs.paths import RunPaths

dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")


@click.group()
def command() -> None:
    """Stop a training that may be somebody else's job.

    The switch is a file: touch triggers it and rm deactivates it as well. A running training looks before each
    iteration, saves and leaves; queued tasks look when they start and leave in seconds, until it is deactivated.
    """


@command.command()
@run_argument
@json_option
@dry_run_option
def arm(run_argument: str | None, run: str | None, as_json: bool, dry_run: bool) -> None:
    """Let the group trigger the run's switch; submit does it as well."""
    from opsctl.records import kill_switch

    paths, group = _paths(run_argument, run)
    if dry_run:
        _say(f"would open {paths.output} to {group or 'its group'} and record the switch", None, as_json, paths)
        return
    change = kill_switch.arm(paths, group)
    news = "armed" if change.changed else "was armed already"
    _say(f"kill switch {change.state.path} {news}", change, as_json, paths)
    _warn_of_jobs_that_look_elsewhere(paths, change.state)


@command.command()
@run_argument
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever finds it.")
@json_option
@dry_run_option
def trigger(run_argument: str | None, run: str | None, reason: str, as_json: bool, dry_run: bool) -> None:
    """Make the training save and leave, and queued tasks leave at their start."""
    from opsctl.records import kill_switch

    paths, _ = _paths(run_argument, run)
    if dry_run:
        _say(f"would create {kill_switch.switch_path(paths)}", None, as_json, paths)
        return
    change = kill_switch.trigger(paths, reason)
    if change.changed:
        line = f"kill switch {change.state.path} triggered: the training saves and leaves at its next iteration"
    else:
        line = f"kill switch {change.state.path} was triggered already, {change.state.describe()}; that stands"
    _say(line, change, as_json, paths)
    _warn_of_jobs_that_look_elsewhere(paths, change.state)


@command.command()
@run_argument
@json_option
@dry_run_option
def deactivate(run_argument: str | None, run: str | None, as_json: bool, dry_run: bool) -> None:
    """Remove the switch: the next task trains again."""
    from opsctl.records import kill_switch

    paths, _ = _paths(run_argument, run)
    if dry_run:
        _say(f"would remove {kill_switch.switch_path(paths)}", None, as_json, paths)
        return
    change = kill_switch.deactivate(paths)
    was = change.state
    if change.changed:
        line = f"kill switch {was.path} deactivated; it was triggered {was.describe()}"
    else:
        line = f"kill switch {was.path} was not triggered: nothing to deactivate"
    _say(line, change, as_json, paths)


@command.command()
@run_argument
@json_option
def status(run_argument: str | None, run: str | None, as_json: bool) -> None:
    """Say whether the switch is armed and triggered, by whom and why."""
    from opsctl.output import print_json, show
    from opsctl.records import kill_switch

    paths, _ = _paths(run_argument, run)
    state = kill_switch.state(paths)
    if as_json:
        print_json("kill_switch", kill_switch.printed_switch(state))
        return
    if state.is_triggered:
        line = f"triggered {state.describe()}"
    elif state.is_armed:
        line = "armed, not triggered"
    else:
        line = "not armed: its owner can run opsctl kill-switch arm"
    show(f"{state.path}: {line}")


def _paths(run_argument: str | None, run: str | None) -> tuple[RunPaths, str | None]:
    from opsctl.records.run_view import glance

    seen = glance(pick(run_argument, run))
    return seen.paths, seen.table.group


def _say(line: str, change: Change | None, as_json: bool, paths: RunPaths) -> None:
    """What was done: a line for a person, or the state with whether it is news."""
    from opsctl.output import message, print_json
    from opsctl.records import kill_switch

    message(line)
    if as_json:
        changed = change is not None and change.changed
        print_json("kill_switch", kill_switch.printed_switch(kill_switch.state(paths), changed))


def _warn_of_jobs_that_look_elsewhere(paths: RunPaths, state: KillSwitchState) -> None:
    """A live job keeps the path it was started with."""
    from opsctl.attempts.events import read
    from opsctl.output import message

    for attempt in read(paths):
        if attempt.is_open and attempt.kill_switch_path not in ("", str(state.path)):
            message(f"job {attempt.display_id} looks at another switch: touch {attempt.kill_switch_path}")
