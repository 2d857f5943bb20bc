"""Test which runs there are."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from opsctl.core.errors import OpsctlError, RunFileError
from opsctl.run.config.locate import remember_run
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import register as records_register
from opsctl.run.state.register import (
    KnownRun,
    all_runs,
    cron_folder,
    cron_folder_option,
    may_act_for,
    paths_of,
    register,
)


def around(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}


def test_a_run_is_on_the_list_of_the_cron_folder_once(tmp_path: Path) -> None:
    environment = around(tmp_path)
    folder = cron_folder(environment)
    folder.mkdir(parents=True)
    for _ in range(2):
        register("tr1", tmp_path / "tr1" / "run.toml", RunPaths(tmp_path / "tr1" / "output"), environment)
    remember_run("tr2", tmp_path / "tr2" / "run.toml", environment)
    found = all_runs(environment)
    assert [(run.name, run.output) for run in found] == [("tr1", str(tmp_path / "tr1" / "output")), ("tr2", "")]


def test_the_variable_that_cron_jobs_have_names_the_cron_folder_before_the_profile_does(tmp_path: Path) -> None:
    environment = around(tmp_path)
    (tmp_path / "config" / "opsctl").mkdir(parents=True)
    (tmp_path / "config" / "opsctl" / "profile.toml").write_text(f'[cron]\nfolder = "{tmp_path}/named"\n')
    assert (cron_folder(environment), cron_folder_option(environment)) == (tmp_path / "named", "")
    there = environment | {"OPSCTL_CRON_FOLDER": str(tmp_path / "it s")}
    assert cron_folder(there) == tmp_path / "it s"
    assert cron_folder_option(there) == f" --folder '{tmp_path}/it s'"
    assert cron_folder_option(environment | {"OPSCTL_CRON_FOLDER": str(tmp_path / "named")}) == ""


def test_without_a_cron_folder_a_run_is_found_as_before(tmp_path: Path) -> None:
    environment = around(tmp_path)
    register("tr1", tmp_path / "run.toml", RunPaths(tmp_path / "output"), environment)
    assert all_runs(environment) == [] and not cron_folder(environment).exists()


def listed(folder: Path, environment: dict[str, str]) -> KnownRun:
    """A run on the cron folder's list that this account never used."""
    cron_folder(environment).mkdir(parents=True, exist_ok=True)
    paths = RunPaths(folder / "output")
    paths.output.mkdir()
    register("tr1", folder / "run.toml", paths, environment)
    (run,) = all_runs(environment)
    return run


def test_a_poller_acts_for_runs_that_its_account_has_used(tmp_path: Path) -> None:
    environment = around(tmp_path)
    run = listed(tmp_path, environment)
    assert not may_act_for(run, RunPaths(tmp_path / "output"), environment)
    remember_run("tr1", tmp_path / "run.toml", environment)
    assert may_act_for(run, RunPaths(tmp_path / "output"), environment)


def test_a_poller_acts_for_runs_of_the_group_that_its_own_profile_names_for_the_cron(
    tmp_path: Path, unix_user: Callable[..., str]
) -> None:
    group = f"ocpoll{os.getpid()}"
    ben, eve = unix_user("ben", groups_of=[group]), unix_user("eve")
    environment = around(tmp_path)
    run = listed(tmp_path, environment)
    folder, output = cron_folder(environment), tmp_path / "output"
    for one in (folder, output):
        os.chown(one, -1, grp.getgrnam(group).gr_gid)
        one.chmod(0o2770)
    assert not may_act_for(run, RunPaths(output), environment)  # the folder's own word on whose it is
    profile = tmp_path / "config" / "opsctl" / "profile.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text(f'[cron]\ngroup = "{group}"\n')
    assert may_act_for(run, RunPaths(output), environment)
    os.chown(output, pwd.getpwnam(ben).pw_uid, -1)
    assert may_act_for(run, RunPaths(output), environment)
    os.chown(output, pwd.getpwnam(eve).pw_uid, -1)  # made in a folder that hands its group on
    assert not may_act_for(run, RunPaths(output), environment)
    os.chown(output, 0, 12345)  # another group's members would decide what runs as this account
    assert not may_act_for(run, RunPaths(output), environment)


def test_a_run_whose_file_cannot_be_read_is_where_it_was_registered(tmp_path: Path) -> None:
    run = listed(tmp_path, around(tmp_path))
    assert paths_of(run).output == tmp_path / "output"
    with pytest.raises(OpsctlError, match=r"no run .*run\.toml"):
        paths_of(msgspec.structs.replace(run, output=""))


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), RunFileError("[cron] folder = 1")])
def test_a_profile_that_cannot_be_read_fails_no_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_environment: object) -> None:
        raise error

    monkeypatch.setattr(records_register, "cron_table", refuse)
    register("tr1", tmp_path / "run.toml", RunPaths(tmp_path / "output"), around(tmp_path))
