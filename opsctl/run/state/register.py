"""The known runs: those that this account has used, and those of the group that the scheduler looks after.

A submit adds its run to the list in the cron folder, where the scheduler and the on-call engineer find it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from opsctl.core.account import account_name, is_member, unix_group
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import append_state, make_folder, read_lines
from opsctl.core.files.trusted import opened_folder
from opsctl.core.timestamps import now
from opsctl.run.config.locate import CRON_FOLDER_VARIABLE, account_state_folder, known_runs
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.profile import cron_table
from opsctl.run.state.group_folder import is_open_to_group, refuse_who_cannot_enter
from opsctl.run.state.run_view import glance


class KnownRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the list."""

    name: str
    run_file: str  # absolute path
    output: str = ""  # absolute path; empty for one that is only this account's own and was not looked at
    by: str = ""  # who submitted it first
    at: datetime | None = None


def cron_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `$OPSCTL_CRON_FOLDER`, the profiles' `[cron] folder`, or this account's. Raises RunFileError."""
    folder = environment.get(CRON_FOLDER_VARIABLE) or cron_table(environment).folder
    if folder is None:
        return account_state_folder(environment) / "cron"
    return Path(os.path.abspath(Path(os.path.expandvars(folder)).expanduser()))  # noqa: PTH100 - links may move


def cron_folder_option(environment: Mapping[str, str] = os.environ) -> str:
    """Return ` --folder F` for a command that a person types later, if only the variable leads to this cron folder."""
    used = cron_folder(environment)
    usual = cron_folder({name: value for name, value in environment.items() if name != CRON_FOLDER_VARIABLE})
    return "" if used == usual else f" --folder {shlex.quote(str(used))}"


def register(name: str, run_file: Path, paths: RunPaths, environment: Mapping[str, str] = os.environ) -> None:
    """Add the run to the cron folder's list, where there is such a folder. Not being able to fails no command."""
    run = KnownRun(name=name, run_file=str(run_file), output=str(paths.output), by=account_name(), at=now())
    # The job is in the queue by now: neither a profile nor a folder that is closed to the caller may say otherwise.
    with contextlib.suppress(OSError, OpsctlError):
        folder = cron_folder(environment)
        known = _listed(folder)
        if folder.is_dir() and not any((one.run_file, one.output) == (run.run_file, run.output) for one in known):
            make_folder(folder, _list_of(folder).parent)
            append_state(folder, _list_of(folder), run)


def all_runs(environment: Mapping[str, str] = os.environ) -> list[KnownRun]:
    """Return the cron folder's runs and this account's, each run file once, sorted by name. Raises OSError."""
    found = {run.run_file: run for run in _listed(cron_folder(environment))}
    for name, run_file in known_runs(environment).items():
        found.setdefault(run_file, KnownRun(name=name, run_file=run_file))
    return sorted(found.values(), key=lambda run: (run.name, run.run_file))


def paths_of(run: KnownRun) -> RunPaths:
    """Return the run's places as its run file says, else as registered. Raises OpsctlError."""
    try:
        paths = glance(run.run_file).paths
    except OpsctlError:
        if not run.output:
            raise
    else:
        refuse_anothers_folder(run, paths)
        return paths
    paths = RunPaths(Path(run.output))
    refuse_who_cannot_enter(paths)
    return paths


def refuse_anothers_folder(run: KnownRun, paths: RunPaths, environment: Mapping[str, str] = os.environ) -> None:
    """Raise OpsctlError if a listed run file has its output in a folder that its owner does not share.

    Any user may put a run on the list, and the scheduler writes to the folders of all listed runs and reports them to
    the channels of the run file. The runs that the account has used by name are its own choice.
    """
    try:
        owner = Path(run.run_file).stat().st_uid
        with opened_folder(paths.output, paths.output) as (_, keepers):
            if keepers.include(owner) or run.run_file in known_runs(environment).values():
                return
            whose = account_name(keepers.owner)
    except FileNotFoundError:
        return  # there is nothing to report
    except OSError as error:
        raise OpsctlError(file_problem(error, paths.output)) from None
    raise OpsctlError(
        f"{run.run_file} is {account_name(owner)}'s, who does not share the folder of {whose}'s that it names as output"
    )


def may_act_for(run: KnownRun, paths: RunPaths, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this account's scheduler may submit for a run that was not given by name.

    The group of a run decides what its job trains, and the job runs as the submitter. So it may for runs that this
    account has made, submitted or refilled itself, and for those that a member shares with the group that its own
    profile names for the cron folder, whose members decide what the scheduler runs anyway.
    """
    if run.run_file in known_runs(environment).values():
        return True
    group = cron_table(environment).group
    if group is None:
        return False
    gid = unix_group(group, "the profile's [cron]").gr_gid
    try:
        found = paths.output.stat()
        is_members = is_member(found.st_uid, gid) or found.st_uid in (0, os.geteuid())
        return is_open_to_group(cron_folder(environment), group) and found.st_gid == gid and is_members
    except OSError:
        return False


def _listed(folder: Path) -> list[KnownRun]:
    return read_lines(folder, _list_of(folder), KnownRun) if folder.is_dir() else []


def _list_of(folder: Path) -> Path:
    return folder / ".opsctl" / "runs.jsonl"
