"""Which runs there are."""

from __future__ import annotations

from pathlib import Path

from opsctl.records.locate import remember_run
from opsctl.records.register import all_runs, cron_folder, register
from opsctl.runs.paths import RunPaths


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


def test_without_a_cron_folder_a_run_is_found_as_before(tmp_path: Path) -> None:
    environment = around(tmp_path)
    register("tr1", tmp_path / "run.toml", RunPaths(tmp_path / "output"), environment)
    assert all_runs(environment) == [] and not cron_folder(environment).exists()
