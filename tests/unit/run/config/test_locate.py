"""Test which run file is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import UsageError
from opsctl.run.config.locate import known_runs, locate_run_file, remember_run


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("", "a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "run.toml").touch()
    return tmp_path


def test_the_argument_wins_over_the_variable_and_that_over_the_folder_one_is_in(here: Path) -> None:
    environment = {"OPSCTL_RUN": "a", "HOME": str(here)}
    assert locate_run_file("b", environment, here) == here / "b" / "run.toml"
    assert locate_run_file(None, environment, here) == here / "a" / "run.toml"
    assert locate_run_file(None, {"HOME": str(here)}, here) == here / "run.toml"


def test_a_remembered_name_is_found_from_anywhere_until_its_file_is_gone(here: Path, tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    remember_run("far", here / "a" / "run.toml", environment)
    assert locate_run_file("far", environment, tmp_path / "state") == here / "a" / "run.toml"
    (here / "a" / "run.toml").unlink()
    with pytest.raises(UsageError, match="no run 'far'"):
        locate_run_file("far", environment, tmp_path / "state")


def test_an_error_about_a_missing_run_names_the_commands_that_help(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--run.*opsctl init NAME"):
        locate_run_file(None, {"HOME": str(tmp_path)}, tmp_path)


def test_a_damaged_registry_is_as_good_as_none(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    (tmp_path / "opsctl").mkdir()
    (tmp_path / "opsctl" / "runs.json").write_text("{")
    assert known_runs(environment) == {}
    remember_run("x", tmp_path / "run.toml", environment)
    assert known_runs(environment) == {"x": str(tmp_path / "run.toml")}
