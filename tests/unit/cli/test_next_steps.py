"""`opsctl` alone and `opsctl --help`: the first screens that a new user sees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.cli import COMMANDS, GROUPS
from tests.unit.cli.called import answer
from tests.unit.cli.test_status import published  # noqa: F401 - a fixture


def test_without_slurm_it_says_what_the_files_do_and_how_to_find_out_why(published: Path) -> None:  # noqa: F811
    found = answer(published)
    assert found.returncode == 0 and found.stdout.startswith("tiny  UNKNOWN")
    assert "iteration 7 of 500" in found.stdout and "opsctl doctor" in found.stdout


def test_a_broken_run_file_and_a_run_that_is_not_there_are_told(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("this is no toml")
    found = answer(tmp_path)
    assert found.returncode == 0 and "run.toml" in found.stdout and "opsctl plan" in found.stdout
    environment = {**os.environ, "OPSCTL_RUN": "nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "opsctl"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "$OPSCTL_RUN" in done.stdout and "'nowhere'" in done.stdout


def test_the_help_fits_80_by_24_and_names_every_command(tmp_path: Path) -> None:
    found = answer(tmp_path, "--help")
    lines = found.stdout.splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80
    words = found.stdout.split()
    assert [name for name in COMMANDS if name not in words] == []


def test_every_command_stands_under_one_thing_that_a_person_wants() -> None:
    named = [name for names in GROUPS.values() for name in names]
    assert len(named) == len(set(named))
    assert all(GROUPS.values())


def test_help_has_a_line_for_each_command_and_all_of_one_that_is_named(tmp_path: Path) -> None:
    lines = answer(tmp_path, "help").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [
        name for names in GROUPS.values() for name in names
    ]
    assert answer(tmp_path, "help", "kill-switch", "trigger").stdout.startswith("Usage: opsctl kill-switch trigger")


@pytest.mark.parametrize(("words", "meant"), [(["sumbit", "x"], "submit"), (["help", "stauts"], "status")])
def test_a_command_that_does_not_exist_is_answered_with_the_nearest(
    tmp_path: Path, words: list[str], meant: str
) -> None:
    found = answer(tmp_path, *words)
    assert found.returncode == 2 and re.search(rf"^opsctl: .*\b{meant}\b", found.stderr)
