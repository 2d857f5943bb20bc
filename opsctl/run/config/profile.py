"""The settings that a cluster's runs share: the profiles of the user and the system.

Precedence: `$XDG_CONFIG_HOME/opsctl/profile.toml` > `/etc/opsctl/profile.toml`. A run file overrides both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from opsctl.run.config.schema import ClusterTable, CronTable, JobsTable, NodesTable, RunFile, WatchTable
from opsctl.run.config.toml_file import read_toml
from opsctl.run.config.toml_types import check_tables
from opsctl.run.config.values import check_values

SYSTEM_PROFILE = Path("/etc/opsctl/profile.toml")


def profile_files(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the existing profiles, that with the highest precedence last."""
    known = (SYSTEM_PROFILE, _persons(environment))
    return [path for path in known if path is not None and path.is_file()]


def profile(environment: Mapping[str, str] = os.environ) -> dict[str, dict[str, Any]]:
    """Table -> key -> value, as all profiles together say it. Raises RunFileError for a wrong one."""
    merged: dict[str, dict[str, Any]] = {}
    for path in profile_files(environment):
        written = read_toml(path)
        check_tables(path, written, profile=True)
        check_values(path, written, profile=True)
        for name, table in written.items():
            merged.setdefault(name, {}).update(table)
    return merged


def cron_table(environment: Mapping[str, str] = os.environ) -> CronTable:
    """[cron] as the profiles say it. Raises RunFileError for a wrong profile."""
    return msgspec.convert(profile(environment).get("cron", {}), CronTable)


def jobs_table(environment: Mapping[str, str] = os.environ) -> JobsTable:
    """[jobs] as the profiles say it. Raises RunFileError for a wrong profile."""
    return msgspec.convert(profile(environment).get("jobs", {}), JobsTable)


def cluster_table(environment: Mapping[str, str] = os.environ) -> ClusterTable:
    """[cluster] as the profiles say it. Raises RunFileError for a wrong profile."""
    return msgspec.convert(profile(environment).get("cluster", {}), ClusterTable)


def nodes_table(environment: Mapping[str, str] = os.environ) -> NodesTable:
    """[nodes] as the profiles say it. Raises RunFileError for a wrong profile."""
    return msgspec.convert(profile(environment).get("nodes", {}), NodesTable)


def watch_table(file: RunFile, environment: Mapping[str, str] = os.environ) -> WatchTable:
    """[watch] of the run file over the profiles'. Raises RunFileError for a wrong profile."""
    return msgspec.convert({**profile(environment).get("watch", {}), **file.watch}, WatchTable)


def quota_command(environment: Mapping[str, str] = os.environ) -> tuple[Path, tuple[str, ...], str | None] | None:
    """Return `[watch] quota_command` and `quota_pattern` with the profile that names them, if any."""
    found = None
    for path in profile_files(environment):
        watch = read_toml(path).get("watch", {})
        if "quota_command" in watch:
            found = path
    said = profile(environment).get("watch", {})
    return None if found is None else (found, tuple(said["quota_command"]), said.get("quota_pattern"))


def site_watch_table(environment: Mapping[str, str] = os.environ) -> WatchTable:
    """[watch] as the profiles alone say it. Raises RunFileError for a wrong profile."""
    return msgspec.convert(profile(environment).get("watch", {}), WatchTable)


def triage_rules_files(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Files of triage rules that the profiles name, the person's before the system's. Raises RunFileError."""
    found = []
    for path in reversed(profile_files(environment)):
        written = read_toml(path)
        check_tables(path, written, profile=True)
        rules = written.get("triage", {}).get("rules")
        if rules is not None:
            found.append(path.parent / Path(rules).expanduser())
    return found


def _persons(environment: Mapping[str, str]) -> Path | None:
    base = environment.get("XDG_CONFIG_HOME")
    if base:
        return Path(base) / "opsctl" / "profile.toml"
    home = environment.get("HOME")
    return Path(home) / ".config" / "opsctl" / "profile.toml" if home else None
