"""Which runs there are: those that this account has used, and those of the group whose pseudo-cron looks after them.

A submit adds its run to the cron folder's list, so that whoever carries the cron, or is on call, finds it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from opsctl.account import account_name
from opsctl.errors import OpsctlError
from opsctl.moments import now
from opsctl.records.group_folder import is_open_to_group, refuse_who_cannot_enter
from opsctl.records.locate import account_state_folder, known_runs
from opsctl.records.run_view import glance
from opsctl.records.state_files import append_state, make_folder, read_lines
from opsctl.runs.paths import RunPaths
from opsctl.runs.profile import cron_table


class KnownRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the list."""

    name: str
    run_file: str  # absolute path
    output: str = ""  # absolute path; empty for one that is only this account's own and was not looked at
    by: str = ""  # who submitted it first
    at: datetime | None = None


def cron_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of the pseudo-cron: the profiles' `[cron] folder`, else one of this account's own.

    Raises RunFileError for a wrong profile.
    """
    folder = cron_table(environment).folder
    if folder is None:
        return account_state_folder(environment) / "cron"
    return Path(os.path.abspath(Path(os.path.expandvars(folder)).expanduser()))  # noqa: PTH100 - links may move


def register(name: str, run_file: Path, paths: RunPaths, environment: Mapping[str, str] = os.environ) -> None:
    """Add the run to the cron folder's list, where there is such a folder. Not being able to fails no command."""
    folder = cron_folder(environment)
    run = KnownRun(name=name, run_file=str(run_file), output=str(paths.output), by=account_name(), at=now())
    with contextlib.suppress(OSError):
        known = _listed(folder)
        if folder.is_dir() and not any((one.run_file, one.output) == (run.run_file, run.output) for one in known):
            make_folder(folder, _list_of(folder).parent)
            append_state(folder, _list_of(folder), run)


def all_runs(environment: Mapping[str, str] = os.environ) -> list[KnownRun]:
    """The cron folder's runs, then those that only this account knows; each run file once, sorted by name.

    Raises OSError where the list cannot be read: runs that nobody can see must not pass for none.
    """
    found = {run.run_file: run for run in _listed(cron_folder(environment))}
    for name, run_file in known_runs(environment).items():
        found.setdefault(run_file, KnownRun(name=name, run_file=run_file))
    return sorted(found.values(), key=lambda run: (run.name, run.run_file))


def paths_of(run: KnownRun) -> RunPaths:
    """Where the run keeps its things: as its run file says, else, while that cannot be read, as it was registered.

    Raises OpsctlError where neither tells, or the folder is closed to the caller.
    """
    try:
        return glance(run.run_file).paths
    except OpsctlError:
        if not run.output:
            raise
    paths = RunPaths(Path(run.output))
    refuse_who_cannot_enter(paths)
    return paths


def may_act_for(run: KnownRun, paths: RunPaths, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this account's poller may submit for a run that it was not told by name.

    What a job of the run trains, its group decides, and it runs as who submits it. So: of runs that this account has
    made, submitted or refilled itself, and of those shared with the group whose cron folder it has chosen, whose
    members decide what the poller runs anyway.
    """
    if run.run_file in known_runs(environment).values():
        return True
    folder = cron_folder(environment)
    try:
        return is_open_to_group(folder) and folder.stat().st_gid == paths.output.stat().st_gid
    except OSError:
        return False


def _listed(folder: Path) -> list[KnownRun]:
    return read_lines(folder, _list_of(folder), KnownRun) if folder.is_dir() else []


def _list_of(folder: Path) -> Path:
    return folder / ".opsctl" / "runs.jsonl"
