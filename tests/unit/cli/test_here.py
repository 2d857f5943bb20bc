"""`opsctl` alone and `opsctl --help` as processes: what a person meets first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from opsctl.cli import COMMANDS, GROUPS, grouped
from tests.tiny_run import write_run
from tests.unit.cli.test_status import opsctl, published  # noqa: F401 - a fixture


def test_without_a_run_it_says_how_to_begin(tmp_path: Path) -> None:
    answer = opsctl(tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith(f"No run in {tmp_path}.") and "opsctl init NAME" in answer.stdout


def test_in_a_runs_folder_it_says_what_to_do_with_it(tmp_path: Path) -> None:
    write_run(tmp_path)
    answer = opsctl(tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("tiny  NOT SUBMITTED YET\n\nNext:\n  opsctl plan ")


def test_without_slurm_it_says_what_the_files_do_and_how_to_find_out_why(published: Path) -> None:  # noqa: F811
    answer = opsctl(published)
    assert answer.returncode == 0 and answer.stdout.startswith("tiny  UNKNOWN: Slurm does not answer")
    assert "iteration 7 of 500" in answer.stdout and "opsctl doctor" in answer.stdout


def test_a_broken_run_file_and_a_run_that_is_not_there_are_told(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("this is no toml")
    answer = opsctl(tmp_path)
    assert answer.returncode == 0 and "cannot look" in answer.stdout and "opsctl plan" in answer.stdout
    environment = {**os.environ, "OPSCTL_RUN": "nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "opsctl"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "$OPSCTL_RUN: no run 'nowhere'" in done.stdout


def test_the_help_fits_80_by_24_and_names_every_command(tmp_path: Path) -> None:
    answer = opsctl(tmp_path, "--help")
    lines = answer.stdout.splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80
    words = answer.stdout.split()
    assert [name for name in COMMANDS if name not in words] == []


def test_every_command_stands_under_one_thing_that_a_person_wants() -> None:
    named = [name for names in GROUPS.values() for name in names]
    assert len(named) == len(set(named)) and set(COMMANDS) <= set(named)
    assert all(grouped().values())


def test_help_has_a_line_for_each_command_and_all_of_one_that_is_named(tmp_path: Path) -> None:
    lines = opsctl(tmp_path, "help").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [
        name for names in grouped().values() for name in names
    ]
    assert opsctl(tmp_path, "help", "kill-switch", "trigger").stdout.startswith("Usage: opsctl kill-switch trigger ")
    assert "did you mean submit?" in opsctl(tmp_path, "train", "x").stderr
    assert "did you mean submit?" in opsctl(tmp_path, "run").stderr
    assert opsctl(tmp_path, "help", "stauts").stderr.startswith("opsctl: no command 'stauts'; did you mean status?")
