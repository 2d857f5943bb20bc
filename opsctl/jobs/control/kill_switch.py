"""The kill switch as its command uses it: messages for people, and what reaches which live job."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import locked
from opsctl.core.output import message
from opsctl.run.attempts.kill_switch_readers import SwitchReader, switch_readers, wait_for_words
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import kill_switch
from opsctl.run.state.group_folder import LOCK_WAIT_S
from opsctl.run.state.identity import place_of, settle_identity
from opsctl.run.state.kill_switch import PrintedKillSwitch, printed_switch
from opsctl.run.state.run_view import glance


def switch_of(chosen: str | None) -> tuple[RunPaths, str | None]:
    """Return the paths and the group of a run, whose run file may be wrong."""
    seen = glance(chosen)
    return seen.paths, seen.table.group


def arm(paths: RunPaths, group: str | None, dry_run: bool) -> PrintedKillSwitch:
    """Let the group trigger the switch. Raises OpsctlError without a group."""
    if group is None:
        raise OpsctlError(
            "not armed: the run file names no group, so only its owner can trigger the switch; "
            'write group = "NAME" under [run], and arm it again'
        )
    if dry_run:
        return _unchanged(paths, f"would open {paths.output} to group {group}")
    change = kill_switch.arm(paths, group)
    with locked(paths.output, paths.lock, LOCK_WAIT_S, "arm the kill switch"):
        warning = settle_identity(paths)
    if warning:
        message(warning)
    state = "armed" if change.changed else "was armed already"
    message(f"kill switch {change.state.path} {state}: group {group} can trigger it")
    _warn_of_jobs_that_look_elsewhere(paths)
    return printed_switch(kill_switch.state(paths), change.changed)


def trigger(paths: RunPaths, reason: str, wait_s: float, dry_run: bool) -> tuple[PrintedKillSwitch, str]:
    """Create the switch and wait for the live jobs to confirm. Return its state, and which jobs it does not reach."""
    place = place_of(paths)
    if place.is_another_runs:
        raise OpsctlError(f"not triggered: {paths.output} is {place.describe()}; nothing trains here, do it there")
    if dry_run:
        answer = _unchanged(paths, f"would create {paths.kill_switch}")
        _warn_of_jobs_that_look_elsewhere(paths)
        return answer, ""
    change = kill_switch.trigger(paths, reason)
    if change.changed:
        message(f"kill switch {change.state.path} triggered: the training saves and exits at its next iteration")
    else:
        message(f"kill switch {change.state.path} was triggered already, {change.state.describe()}; no change")
    live = switch_readers(paths)
    heard = _hear(live, paths, wait_s)
    jobs = tuple(reader.printed(heard.get(reader.attempt.id)) for reader in live)
    missed = [reader for reader in live if not reader.sees_it and reader.attempt.id not in heard]
    not_reached = missed and (
        f"not reached: {_where(missed)}, which is not in {paths.output}: touch that if it is this run's too, "
        "or let the job's owner run opsctl cancel"
    )
    return printed_switch(change.state, change.changed, jobs), not_reached or ""


def deactivate(paths: RunPaths, dry_run: bool) -> PrintedKillSwitch:
    """Remove the switch, on record."""
    if dry_run:
        return _unchanged(paths, f"would remove {paths.kill_switch}")
    change = kill_switch.deactivate(paths)
    before = change.state
    if change.changed:
        try:
            kill_switch.record_deactivation(paths, before)
        except OSError as error:  # it is deactivated all the same
            message(f"that is not on record: {error.filename or paths.kill_switch_log}: {error.strerror}")
        message(f"kill switch {before.path} deactivated; it was triggered {before.describe()}")
    else:
        message(f"kill switch {before.path} was not triggered: nothing to deactivate")
    return printed_switch(kill_switch.state(paths), change.changed)


def status(paths: RunPaths, group: str | None) -> tuple[PrintedKillSwitch, str]:
    """Return the state of the switch, and a line for people."""
    state = kill_switch.state(paths)
    if state.is_triggered:
        line = f"triggered {state.describe()}"
    elif state.is_armed:
        line = "not triggered; every group member can trigger it"
    elif group:
        line = f"not triggered; {state.readiness()}. To let group {group} trigger it: opsctl kill-switch arm"
    else:
        share = 'write group = "UNIX GROUP" under [run] of the run file, then opsctl kill-switch arm'
        line = f"not triggered; {state.readiness()}. To share it: {share}"
    return printed_switch(state), f"{state.path}: {line}"


def _unchanged(paths: RunPaths, line: str) -> PrintedKillSwitch:
    message(line)
    return printed_switch(kill_switch.state(paths), False)


def _hear(live: Sequence[SwitchReader], paths: RunPaths, wait_s: float) -> dict[str, str]:
    """Return what each attempt reports within `wait_s` seconds, and print it."""
    heard: dict[str, str] = {}

    def hear(reader: SwitchReader, word: str) -> None:
        heard[reader.attempt.id] = word
        message(f"job {reader.job} {word}")

    if live and wait_s:
        message(f"waiting up to {wait_s:g} s for job {', '.join(reader.job for reader in live)}")
    silent = [reader.job for reader in wait_for_words(paths, live, wait_s, hear) if reader.sees_it]
    if silent and wait_s:
        message(
            f"no word yet of job {', '.join(silent)}: its start, a long iteration, an evaluation, a save or a full "
            "disk delays it, and a job that died sends none; the switch stays triggered, opsctl status shows who "
            "left"
        )
    return heard


def _warn_of_jobs_that_look_elsewhere(paths: RunPaths) -> None:
    if elsewhere := [reader for reader in switch_readers(paths) if not reader.sees_it]:
        message(f"{_where(elsewhere)}, which is not in {paths.output}: triggering here does not reach it")


def _where(live: Sequence[SwitchReader]) -> str:
    return "; ".join(f"job {reader.job} checks {reader.attempt.kill_switch_path}" for reader in live)
