"""Find the run file: an argument, `--run`, `$OPSCTL_RUN` or `./run.toml`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from opsctl.core.errors import UsageError
from opsctl.core.files.state_files import read_state, write_state

#: Names the cron folder before the profile does. Each job of a scheduler has it.
CRON_FOLDER_VARIABLE = "OPSCTL_CRON_FOLDER"
RUN_FILE_NAME = "run.toml"


def locate_run_file(
    chosen: str | None, environment: Mapping[str, str] = os.environ, folder: Path | None = None
) -> Path:
    """Return the file of `chosen` (a path, folder or known name), `$OPSCTL_RUN` or `./run.toml`. Raises UsageError."""
    here = folder or Path.cwd()
    wanted = chosen or environment.get("OPSCTL_RUN")
    if not wanted:
        found = here / RUN_FILE_NAME
        if found.is_file():
            return found
        raise UsageError(
            f"no run given and no {RUN_FILE_NAME} in {here}: name one with --run, or make one with opsctl init NAME"
        )
    path = here / Path(wanted).expanduser()
    if path.is_dir() and (path / RUN_FILE_NAME).is_file():
        return path / RUN_FILE_NAME
    if path.is_file():
        return path
    known = known_runs(environment)
    if wanted in known and Path(known[wanted]).is_file():
        return Path(known[wanted])
    raise UsageError(
        f"no run {wanted!r}: neither a run file, a folder with {RUN_FILE_NAME}, nor a run made or submitted here before"
    )


def known_runs(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Run name -> run file, as this account has used them."""
    return read_state(account_state_folder(environment), _registry(environment), dict[str, str]) or {}


def remember_run(name: str, run_file: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Let `--run NAME` find this run file from any folder. Not being able to is no reason to fail a command."""
    registry = _registry(environment)
    known = known_runs(environment)
    if known.get(name) == str(run_file):
        return
    try:
        registry.parent.mkdir(parents=True, exist_ok=True)
        write_state(registry.parent, registry, {**known, name: str(run_file)}, mode=0o600)
    except OSError:
        pass


def account_state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this account's state, for all runs: `$XDG_STATE_HOME/opsctl`."""
    state = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME") or Path.home()) / ".local" / "state"
    return Path(state) / "opsctl"


def _registry(environment: Mapping[str, str]) -> Path:
    return account_state_folder(environment) / "runs.json"
