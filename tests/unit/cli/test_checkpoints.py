"""`opsctl checkpoints`, and what the other commands say when the latest is missing or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.cli import main
from tests.printed_json import printed
from tests.tiny_run import write_checkpoint, write_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with two checkpoints, whose `latest` is gone."""
    write_run(tmp_path)
    write_checkpoint(tmp_path, 10, 80)
    write_checkpoint(tmp_path, 20, 160)
    (tmp_path / "output" / "checkpoints" / "latest").unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("OPSCTL_CLUSTER", "OPSCTL_RUN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def opsctl(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    return int(stop.value.code or 0)


def test_the_list_shows_them_and_says_that_there_is_no_latest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("checkpoints", "list", "--json") == 0
    answer = capsys.readouterr()
    found = printed("checkpoints list", answer.out)
    assert [(one["iteration"], one["latest"]) for one in found] == [(10, False), (20, False)]
    assert "latest is missing" in answer.err
    assert opsctl("checkpoints", "list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("words", [("submit",), ("submit", "--dry-run"), ("revise",), ("revise", "--dry-run")])
def test_no_training_starts_from_nothing_beside_checkpoints(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert opsctl(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "latest is missing" in line
    assert "the newest complete checkpoint is global_step20: opsctl checkpoints repoint makes it the latest" in line


def test_status_says_it_instead_of_none_yet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "output" / "logs").mkdir()
    (folder / "output" / "logs" / "main_log.txt").write_text(
        " iteration       20/ 500 | consumed samples:          160 | consumed tokens:         2560 | elapsed time per "
        "iteration (s): 1.00 | learning rate: 1.000E-03 | global batch size: 8 | lm loss: 5.0E+00 | grad norm: 1.0 |\n"
    )
    opsctl("status")
    screen = " ".join(capsys.readouterr().out.split())
    assert "critical" in screen and "opsctl checkpoints repoint" in screen
    assert "checkpoint not known" in screen and "checkpoint none yet" not in screen
    opsctl("status", "--json")
    status = printed("status", capsys.readouterr().out)
    assert status["checkpoint"] is None and "latest is missing" in status["checkpoint_problem"]


def test_a_file_of_the_latest_that_was_cut_is_refused_as_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = folder / "output" / "checkpoints" / "global_step20"
    manifest = (saved / "manifest.json").read_text()
    entry = '"files": {"a.pt": {"bytes": 10, "xxh64": "0123456789abcdef"}}'
    (saved / "manifest.json").write_text(manifest.replace('"files": {}', entry))
    (saved / "a.pt").write_bytes(b"123456789")
    (saved.parent / "latest").write_text(saved.name)
    assert opsctl("submit") == 2
    assert "a.pt has 9 bytes instead of 10; the newest complete checkpoint is global_step10" in capsys.readouterr().err
    assert opsctl("checkpoints", "list") == 0
    assert "a.pt has 9 bytes instead of 10, latest" in capsys.readouterr().out
