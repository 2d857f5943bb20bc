"""`opsctl render` needs no Slurm and leaves no trace."""

from pathlib import Path

import pytest

from tests.printed_json import printed
from tests.tiny_run import write_run
from tests.unit.cli.called import go_into, opsctl


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_run(tmp_path)
    return go_into(tmp_path, monkeypatch)


def test_everything_a_submit_hands_over_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    assert opsctl("render") == 0
    text = capsys.readouterr().out
    names = ["batch.sh", "run.json", "step.sh", "trainer-arguments.json", "engine.json"]
    assert [line[4:-4] for line in text.splitlines() if line.startswith("==> ")] == names
    assert "made-at-first-submit" in text and "#SBATCH --array=1-3%1" in text
    assert sorted(folder.rglob("*")) == before


def test_json_has_the_files_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("render", "--json") == 0
    files = printed("render", capsys.readouterr().out)
    assert files["step.sh"].startswith("#!/bin/bash\n")


def test_a_bad_run_file_is_one_line_and_exit_code_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder, slurm="cpus_per_tusk = 4")
    assert opsctl("render") == 2
    answer = capsys.readouterr()
    assert answer.out == "" and len(answer.err.splitlines()) == 1 and "cpus_per_task" in answer.err
