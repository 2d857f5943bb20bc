"""`opsctl kill-switch`: a file that makes a training save and leave, whoever's job it is. Needs no Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opsctl.cli.selection import json_option, run_argument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opsctl.run.attempts.kill_switch_readers import Looker
    from opsctl.run.config.paths import RunPaths
    from opsctl.run.state.kill_switch import Change

#: How long `trigger` waits for the training's word: an iteration and a bit of most.
WORD_WAIT_S = 10.0

dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")


@click.group()
def command() -> None:
    """Stop a training that may be somebody else's job.

    The switch is a file: touch triggers it and rm deactivates it as well. A running training looks before each
    iteration, saves and leaves; queued tasks look when they start and leave in seconds, until it is deactivated.
    """


@command.command()
@run_argument
@json_option(kill_switch="opsctl.run.state.kill_switch.PrintedKillSwitch")
@dry_run_option
def arm(run: str | None, as_json: bool, dry_run: bool) -> None:
    """Let the run file's group trigger the run's switch; submit does it as well."""
    from opsctl.core.errors import OpsctlError
    from opsctl.core.files.state_files import locked
    from opsctl.core.output import message
    from opsctl.run.state import kill_switch
    from opsctl.run.state.group_folder import LOCK_WAIT_S
    from opsctl.run.state.identity import settle_identity

    paths, group = _paths(run)
    if group is None:
        raise OpsctlError(
            "not armed: the run file names no group, so only its owner can trigger the switch; "
            'write group = "NAME" under [run], and arm it again'
        )
    if dry_run:
        _say(f"would open {paths.output} to group {group}", None, as_json, paths)
        return
    change = kill_switch.arm(paths, group)
    with locked(paths.output, paths.lock, LOCK_WAIT_S, "arm the kill switch"):
        news = settle_identity(paths)
    if news:
        message(news)
    news = "armed" if change.changed else "was armed already"
    _say(f"kill switch {change.state.path} {news}: group {group} can trigger it", change, as_json, paths)
    _warn_of_jobs_that_look_elsewhere(paths)


@command.command()
@run_argument
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever finds it.")
@click.option("--no-wait", is_flag=True, help=f"Do not wait {WORD_WAIT_S:g} s for the training to say that it saw it.")
@json_option(kill_switch="opsctl.run.state.kill_switch.PrintedKillSwitch")
@dry_run_option
def trigger(run: str | None, reason: str, no_wait: bool, as_json: bool, dry_run: bool) -> None:
    """Make the training save and leave, and queued tasks leave at their start.

    Fails when a live job looks where it cannot be triggered from here.
    """
    from opsctl.core.errors import OpsctlError
    from opsctl.core.output import message, print_json
    from opsctl.run.attempts.kill_switch_readers import lookers
    from opsctl.run.state import kill_switch
    from opsctl.run.state.identity import place_of

    paths, _ = _paths(run)
    place = place_of(paths)
    if place.is_another_runs:
        raise OpsctlError(f"not triggered: {paths.output} is {place.describe()}; nothing trains here, do it there")
    if dry_run:
        _say(f"would create {paths.kill_switch}", None, as_json, paths)
        _warn_of_jobs_that_look_elsewhere(paths)
        return
    change = kill_switch.trigger(paths, reason)
    if change.changed:
        line = f"kill switch {change.state.path} triggered: the training saves and leaves at its next iteration"
    else:
        line = f"kill switch {change.state.path} was triggered already, {change.state.describe()}; that stands"
    message(line)
    said = _hear(live := lookers(paths), paths, 0.0 if no_wait else WORD_WAIT_S)
    if as_json:
        jobs = tuple(looker.printed(said.get(looker.attempt.id)) for looker in live)
        print_json("kill_switch", kill_switch.printed_switch(change.state, change.changed, jobs))
    not_reached = [looker for looker in live if not looker.sees_it and looker.attempt.id not in said]
    if not_reached:
        raise OpsctlError(
            f"not reached: {_where(not_reached)}, which is not in {paths.output}: touch that if it is this run's too, "
            "or let the job's owner run opsctl cancel"
        )


@command.command()
@run_argument
@json_option(kill_switch="opsctl.run.state.kill_switch.PrintedKillSwitch")
@dry_run_option
def deactivate(run: str | None, as_json: bool, dry_run: bool) -> None:
    """Remove the switch: the next task trains again."""
    from opsctl.core.output import message
    from opsctl.run.state import kill_switch
    from opsctl.run.state.kill_switch import record_deactivation

    paths, _ = _paths(run)
    if dry_run:
        _say(f"would remove {paths.kill_switch}", None, as_json, paths)
        return
    change = kill_switch.deactivate(paths)
    was = change.state
    if change.changed:
        line = f"kill switch {was.path} deactivated; it was triggered {was.describe()}"
        try:
            record_deactivation(paths, was)
        except OSError as error:  # it is done all the same
            message(f"that is not on record: {error.filename or paths.kill_switch_log}: {error.strerror}")
    else:
        line = f"kill switch {was.path} was not triggered: nothing to deactivate"
    _say(line, change, as_json, paths)


@command.command()
@run_argument
@json_option(kill_switch="opsctl.run.state.kill_switch.PrintedKillSwitch")
def status(run: str | None, as_json: bool) -> None:
    """Say whether the switch is armed and triggered, by whom and why."""
    from opsctl.core.output import print_json, show
    from opsctl.run.state import kill_switch

    paths, group = _paths(run)
    state = kill_switch.state(paths)
    if as_json:
        print_json("kill_switch", kill_switch.printed_switch(state))
        return
    if state.is_triggered:
        line = f"triggered {state.describe()}"
    elif state.is_armed:
        line = "armed, not triggered"
    else:
        line = state.readiness() + (
            f"; opsctl kill-switch arm lets group {group} trigger it"
            if group
            else '; to share it, write group = "NAME" under [run] of the run file, then opsctl kill-switch arm'
        )
    show(f"{state.path}: {line}")


def _paths(run: str | None) -> tuple[RunPaths, str | None]:
    from opsctl.core.output import message
    from opsctl.run.state import kill_switch
    from opsctl.run.state.run_view import glance

    seen = glance(run)
    paths, elsewhere = seen.paths, kill_switch.path_passed_over(seen.paths)
    if elsewhere:
        message(f"{paths.state}/kill-switch.json names {elsewhere}: passed over, the switch is {paths.kill_switch}")
    return paths, seen.table.group


def _say(line: str, change: Change | None, as_json: bool, paths: RunPaths) -> None:
    """What was done: a line for a person, or the state with whether it is news."""
    from opsctl.core.output import message, print_json
    from opsctl.run.state import kill_switch

    message(line)
    if as_json:
        changed = change is not None and change.changed
        print_json("kill_switch", kill_switch.printed_switch(kill_switch.state(paths), changed))


def _hear(live: Sequence[Looker], paths: RunPaths, wait_s: float) -> dict[str, str]:
    """Attempt -> what it says within `wait_s` seconds; said here as well, and that others say nothing."""
    from opsctl.core.output import message
    from opsctl.run.attempts.kill_switch_readers import wait_for_words

    heard: dict[str, str] = {}

    def hear(looker: Looker, said: str) -> None:
        heard[looker.attempt.id] = said
        message(f"job {looker.job} {said}")

    if live and wait_s:
        message(f"waiting up to {wait_s:g} s for the word of job {_jobs(live)}")
    silent = [looker for looker in wait_for_words(paths, live, wait_s, hear) if looker.sees_it]
    if silent and wait_s:
        message(
            f"no word yet of job {_jobs(silent)}: its start, a long iteration, an evaluation, a save or a full disk "
            "delays it, and a job that died says none; the switch stays triggered, opsctl status shows who has left"
        )
    return heard


def _warn_of_jobs_that_look_elsewhere(paths: RunPaths) -> None:
    from opsctl.core.output import message
    from opsctl.run.attempts.kill_switch_readers import lookers

    elsewhere = [looker for looker in lookers(paths) if not looker.sees_it]
    if elsewhere:
        message(f"{_where(elsewhere)}, which is not in {paths.output}: triggering here does not reach it")


def _jobs(live: Sequence[Looker]) -> str:
    return ", ".join(looker.job for looker in live)


def _where(live: Sequence[Looker]) -> str:
    return "; ".join(f"job {looker.job} looks at {looker.attempt.kill_switch_path}" for looker in live)
