"""`opsctl perms` as people type it; what it finds and changes is in tests/unit/run/permissions."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from opsctl.core.account import group_name
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import open_output
from tests.tiny_run import write_run
from tests.unit.cli.called import go_into, opsctl

GROUP = group_name(os.getegid())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return go_into(tmp_path, monkeypatch)


def shared_run(folder: Path) -> RunPaths:
    path = write_run(folder)
    path.write_text(path.read_text().replace("[run]", f'[run]\ngroup = "{GROUP}"'))
    path.chmod(0o600)
    paths = RunPaths(folder / "output")
    open_output(paths, GROUP)
    return paths


def test_the_runs_output_and_its_file_are_looked_at_and_opened(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = shared_run(here)
    (paths.output / "notes.txt").touch(0o600)
    assert opsctl("perms", "check") == 1
    told = capsys.readouterr().out
    assert re.search(rf"^{re.escape(str(paths.output))}: 1 of 3 .*\b{GROUP}\b", told, re.MULTILINE)
    assert f"{here / 'run.toml'}: 1 of 1" in told and "notes.txt" in told
    assert opsctl("perms", "fix", "--dry-run") == 0
    assert (paths.output / "notes.txt").stat().st_mode & 0o777 == 0o600
    assert opsctl("perms", "fix") == 0
    assert ((paths.output / "notes.txt").stat().st_mode | 0o660, (here / "run.toml").stat().st_mode & 0o777) == (
        (paths.output / "notes.txt").stat().st_mode,
        0o640,
    )
    capsys.readouterr()
    assert opsctl("perms", "check", "--json") == 0
    (output, file) = json.loads(capsys.readouterr().out)["perms"]
    assert (output["folder"], output["wrong"], output["owners"], file["entries"]) == (str(paths.output), 0, [], 1)


def test_a_run_that_is_shared_with_nobody_is_opened_to_nobody(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(here)
    paths = RunPaths(here / "output")
    open_output(paths, None)
    assert opsctl("perms", "fix") == 2
    assert re.search(r"\bgroup = ", capsys.readouterr().err), "the key to write"
    for words in (("--group", GROUP), ("--group", GROUP, "output"), ("--group", GROUP, "output/.opsctl")):
        assert opsctl("perms", "fix", *words) != 0
    assert {path.stat().st_mode & 0o7777 for path in (paths.output, paths.state)} == {0o700}


def test_no_folder_and_no_group_are_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("perms", "check", "--group", GROUP, "none") == 1
    assert opsctl("perms", "check", "--group", "nosuchgroup", ".") == 2
    assert opsctl("perms", "check", "--", "-rf") == 2
    err = capsys.readouterr().err
    assert "none" in err and "'nosuchgroup'" in err and err.count("\n") == 3
