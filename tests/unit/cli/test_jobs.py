from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from opsctl.cli import jobs
from opsctl.core.timestamps import now
from opsctl.jobs.background.records import CommandRecords, command_records
from opsctl.jobs.background.submission import start
from tests.printed_json import printed
from tests.unit.cli.called import go_into, opsctl
from tests.unit.jobs.background.sent import a_command
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandRecords:
    """The commands of an account whose Slurm is not to be found."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    go_into(tmp_path, monkeypatch)
    found = command_records()
    found.root.mkdir(mode=0o700, parents=True)
    return found


def test_what_is_open_is_unknown_where_slurm_does_not_answer_and_what_ended_is_told(
    place: CommandRecords, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(a_command(tmp_path).ended("failed", "killed by SIGKILL", 137))
    place.write(a_command(tmp_path).with_last(job_id=12))
    assert opsctl("jobs", "--json") == 1
    told = capsys.readouterr()
    assert "squeue" in told.err and "PATH" in told.err
    ended, there = printed("jobs list", told.out)
    assert (ended["state"], ended["exit_code"], ended["is_open"]) == ("failed", 137, False)
    assert (there["state"], there["exit_code"], there["is_open"], there["job_id"]) == ("unknown", None, True, 12)
    assert all(one.is_open is (one.last.job_id == 12) for one in place.all())


def test_nothing_is_asked_of_slurm_where_nothing_is_open(
    place: CommandRecords, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = a_command(tmp_path).ended("done", exit_code=0)
    place.write(command)
    place.output(command.name).write_text("one\ntwo")
    assert opsctl("jobs") == 0
    assert "two" in capsys.readouterr().out
    assert opsctl("jobs", "logs", "-f", command.name) == 0
    assert capsys.readouterr() == ("one\ntwo\n", f"{command.name}: done\n")


def test_one_that_cannot_be_asked_for_is_not_cancelled(
    place: CommandRecords, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = a_command(tmp_path).with_last(job_id=12)
    place.write(command)
    assert opsctl("jobs", "cancel", "12") == 1
    assert "squeue" in capsys.readouterr().err
    assert place.read(command.name) == command


def test_what_ended_is_listed_for_a_week(
    place: CommandRecords, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = a_command(tmp_path).ended("lost"), a_command(tmp_path).ended("lost")
    for command, days in ((old, 7), (new, 6)):
        place.write(msgspec.structs.replace(command, ended_at=now() - timedelta(days=days, minutes=1)))
    assert opsctl("jobs") == 0
    shown = capsys.readouterr().out
    assert new.name in shown and old.name not in shown
    assert opsctl("jobs", "--all") == 0
    assert old.name in capsys.readouterr().out


def test_what_has_ended_can_be_forgotten_and_what_is_open_cannot(
    place: CommandRecords, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, done, there = a_command(tmp_path).ended("lost"), a_command(tmp_path).ended("done"), a_command(tmp_path)
    for command in (lost, done, there.with_last(job_id=12)):
        place.write(command)
        place.output(command.name).write_text("text\n")
    assert opsctl("jobs", "forget", lost.name, "--dry-run") == 0 and len(place.all()) == 3
    assert opsctl("jobs", "forget", lost.name) == 0
    assert {one.name for one in place.all()} == {done.name, there.name}
    assert not place.output(lost.name).parent.exists()
    assert opsctl("jobs", "forget", done.name, "12") == 1
    assert "--anyway" in capsys.readouterr().err and len(place.all()) == 2
    assert opsctl("jobs", "forget", "--ended") == 0
    assert [one.name for one in place.all()] == [there.name]
    assert opsctl("jobs", "forget", "12", "--anyway") == 0 and place.all() == []
    for wrong in ((), ("--ended", "12")):
        assert opsctl("jobs", "forget", *wrong) == 2


def test_one_that_slurm_has_is_not_forgotten(
    place: CommandRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = SlurmInMemory()
    command = start(place, slurm, a_command(tmp_path))
    monkeypatch.setattr(jobs, "client_for", lambda _: slurm)
    assert opsctl("jobs", "forget", command.name, "--anyway") == 1
    said = capsys.readouterr().err
    assert command.name in said and "opsctl jobs cancel" in said
    assert place.all() == [command]


@pytest.mark.parametrize("words", [("logs", "e0000000"), ("cancel", "77")])
def test_one_that_is_not_there_is_refused_with_what_to_type(
    place: CommandRecords, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("jobs", *words) == 1
    assert "opsctl jobs --all" in capsys.readouterr().err
