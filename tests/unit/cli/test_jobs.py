from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errands.records import Errands, errands
from tests.printed_json import printed
from tests.unit.cli.called import go_into, opsctl
from tests.unit.errands.sent import an_errand


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errands:
    """The errands of an account whose Slurm is not to be found."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    go_into(tmp_path, monkeypatch)
    found = errands()
    found.root.mkdir(mode=0o700, parents=True)
    return found


def test_what_is_open_is_unknown_where_slurm_does_not_answer_and_what_ended_is_told(
    place: Errands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(an_errand(tmp_path).ended("failed", "killed by SIGKILL", 137))
    place.write(an_errand(tmp_path).with_last(job_id=12))
    assert opsctl("jobs", "--json") == 1
    told = capsys.readouterr()
    assert "squeue is not on PATH" in told.err
    ended, there = printed("jobs list", told.out)
    assert (ended["state"], ended["exit_code"], ended["is_open"]) == ("failed", 137, False)
    assert (there["state"], there["exit_code"], there["is_open"], there["job_id"]) == ("unknown", None, True, 12)
    assert all(one.is_open is (one.last.job_id == 12) for one in place.all())


def test_nothing_is_asked_of_slurm_where_nothing_is_open(
    place: Errands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errand = an_errand(tmp_path).ended("done", exit_code=0)
    place.write(errand)
    place.output(errand.errand).write_text("one\ntwo")
    assert opsctl("jobs") == 0
    assert "two" in capsys.readouterr().out
    assert opsctl("jobs", "logs", "-f", errand.errand) == 0
    assert capsys.readouterr() == ("one\ntwo\n", f"{errand.errand}: done\n")


def test_one_that_cannot_be_asked_for_is_not_cancelled(
    place: Errands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errand = an_errand(tmp_path).with_last(job_id=12)
    place.write(errand)
    assert opsctl("jobs", "cancel", "12") == 1
    assert "squeue is not on PATH" in capsys.readouterr().err
    assert place.read(errand.errand) == errand


@pytest.mark.parametrize("words", [("logs", "e0000000"), ("cancel", "77")])
def test_one_that_is_not_there_is_refused_with_what_to_type(
    place: Errands, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("jobs", *words) == 1
    assert "opsctl jobs --all" in capsys.readouterr().err


def test_the_groups_own_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("jobs", "--help") == 0
    assert "Commands:" in capsys.readouterr().out
