"""The command `opsctl kill-switch`: a file that makes a training save and exit. Needs no Slurm."""

from __future__ import annotations

import click

from opsctl.cli.selection import Function, json_option, run_argument
from opsctl.core.errors import OpsctlError
from opsctl.core.output import print_json, show
from opsctl.jobs.control import kill_switch
from opsctl.run.state.kill_switch import PrintedKillSwitch

#: How long `trigger` waits for the training to report that it saw the switch: an iteration and a bit of most.
WORD_WAIT_S = 10.0
_json_option = json_option(kill_switch="opsctl.run.state.kill_switch.PrintedKillSwitch")


def _change_options(function: Function) -> Function:
    dry_run = click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
    return run_argument(_json_option(dry_run(function)))


@click.group()
def command() -> None:
    """Stop a training, even another member's.

    The switch is a file, so touch triggers it and rm deactivates it too. opsctl's trainer checks it before each
    iteration, saves and exits. Your own program gets its stop signal, and must save by itself. Each queued task exits
    as soon as Slurm starts it, until the switch is deactivated.
    """


@command.command()
@_change_options
def arm(run: str | None, as_json: bool, dry_run: bool) -> None:
    """Give the run's group permission to trigger the switch.

    opsctl submit does this too, and the owner can always trigger it. Use this if the permission was lost.
    """
    _print(kill_switch.arm(*kill_switch.switch_of(run), dry_run), as_json)


@command.command()
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the record.")
@click.option("--no-wait", is_flag=True, help=f"Do not wait {WORD_WAIT_S:g} s for the training to confirm.")
@_change_options
def trigger(run: str | None, reason: str, no_wait: bool, as_json: bool, dry_run: bool) -> None:
    """Stop the training and its queued tasks; it saves first.

    Each queued task exits as soon as Slurm starts it. Fails if a running job uses another output folder: trigger the
    switch with the run file of that folder.
    """
    paths, _ = kill_switch.switch_of(run)
    answer, not_reached = kill_switch.trigger(paths, reason, 0.0 if no_wait else WORD_WAIT_S, dry_run)
    _print(answer, as_json)
    if not_reached:
        raise OpsctlError(not_reached)


@command.command()
@_change_options
def deactivate(run: str | None, as_json: bool, dry_run: bool) -> None:
    """Remove the switch. Queued tasks then train again; if none is left, submit."""
    paths, _ = kill_switch.switch_of(run)
    _print(kill_switch.deactivate(paths, dry_run), as_json)


@command.command()
@run_argument
@_json_option
def status(run: str | None, as_json: bool) -> None:
    """Print whether the switch is armed or triggered."""
    answer, line = kill_switch.status(*kill_switch.switch_of(run))
    _print(answer, as_json)
    if not as_json:
        show(line)


def _print(answer: PrintedKillSwitch, as_json: bool) -> None:
    if as_json:
        print_json("kill_switch", answer)
