"""Test what every command makes of a newest revision that is damaged, and the way out of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opsctl.run.config.load import load_run_file
from opsctl.run.state import revisions
from tests.printed_json import printed
from tests.tiny_run import ready, write_run
from tests.unit.cli.called import go_into, opsctl


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose second revision has lost its arguments."""
    revisions.publish(ready(load_run_file(write_run(tmp_path), {})))
    damaged = revisions.publish(ready(load_run_file(write_run(tmp_path, lr="2e-3"), {})))
    (damaged.folder / "trainer-arguments.json").unlink()
    return go_into(tmp_path, monkeypatch)


def test_revise_publishes_over_it_as_the_error_advises(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("revise", "--dry-run") == 0
    assert opsctl("revise") == 0
    answer = capsys.readouterr()
    assert answer.out.startswith("0003-") and "0002-" in answer.err
    found = revisions.newest(load_run_file(folder / "run.toml").paths)
    assert found is not None and (found.number, found.damage) == (3, "")


def test_status_shows_the_rest_and_says_that_no_task_can_start(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opsctl("status")
    screen = " ".join(capsys.readouterr().out.split())
    assert re.search(r"critical .*\b0002-", screen) and "kill switch" in screen
    opsctl("status", "--json")
    status = printed("status", capsys.readouterr().out)
    assert status["revision"]["name"].startswith("0002-") and status["revision"]["differs"] == []
    assert status["progress"]["total_samples"] is None


@pytest.mark.parametrize("words", [("attempts",), ("kill-switch", "status"), ("logs",), ("checkpoints", "list")])
def test_what_does_not_need_it_does_not_look_at_it(folder: Path, words: tuple[str, ...]) -> None:
    assert opsctl(*words) in (0, 1)
    assert opsctl("kill-switch", "trigger", "--reason", "x") == 0


def test_watch_cannot_tell(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("watch", "training") == 3
    assert len(capsys.readouterr().out.splitlines()) == 1
