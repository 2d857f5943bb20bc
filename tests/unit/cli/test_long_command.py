from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from opsctl.cli.long_command import LongCommand, without_job_options
from opsctl.cli.selection import json_option
from opsctl.jobs.background import submission
from opsctl.jobs.background.records import BackgroundCommand, command_records
from opsctl.run.state.background_progress import PROGRESS_VARIABLE
from tests.printed_json import printed
from tests.tiny_run import write_run
from tests.unit.cli.called import go_into, opsctl


@click.command(cls=LongCommand)
@click.argument("name", required=False)
@click.option("--reason", "-r")
@click.option("--undo", is_flag=False, flag_value="newest")
@json_option()
def example(**_: object) -> None:
    """Nothing."""


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["--job", "a"], ["a"]),
        (["a", "--time", "1:00", "--job", "--partition=p q", "--json"], ["a", "--json"]),
        (["--reason", "--job", "--job"], ["--reason", "--job"]),
        (["-r", "--time", "x"], ["-r", "--time", "x"]),
        (["--reason=--partition", "--qos=q"], ["--reason=--partition"]),
        (["--undo", "--job"], ["--undo"]),
        (["--job", "--cpus", "4", "--", "--job"], ["--", "--job"]),
    ],
)
def test_the_jobs_command_line_is_the_same_without_what_made_it_a_job(typed: Sequence[str], kept: list[str]) -> None:
    assert without_job_options(typed, example.params) == kept


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return go_into(tmp_path, monkeypatch)


def test_a_dry_run_prints_the_script_and_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder)
    assert opsctl("checkpoints", "prune", "--job", "--dry-run", "--partition", "long one", "--cpus", "4") == 0
    script = capsys.readouterr().out
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=opsctl-checkpoints-prune\n")
    assert "#SBATCH --partition='long one'\n" in script and "#SBATCH --cpus-per-task=4\n" in script
    assert not (folder / "state" / "opsctl" / "errands").exists()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[BackgroundCommand]:
    """Return what would have been handed to Slurm."""
    found: list[BackgroundCommand] = []

    def start(_place: object, _client: object, command: BackgroundCommand) -> BackgroundCommand:
        found.append(command)
        return command

    monkeypatch.setattr(submission, "start", start)
    return found


def test_what_a_run_shares_with_its_group_nobody_else_can_read(folder: Path, sent: list[BackgroundCommand]) -> None:
    write_run(folder, group="root")
    assert opsctl("checkpoints", "prune", "--job") == 0
    assert opsctl("data", "prepare", "x", "--output-prefix", "y", "--job") == 0
    assert (sent[0].umask, sent[0].run, sent[1].run) == (0o007, "tiny", "")
    assert sent[0].words == ("checkpoints", "prune") and sent[0].goes_on and sent[1].goes_on


@pytest.mark.parametrize(
    ("words", "goes_on", "internet"),
    [
        (("hub", "sync", "logs"), True, True),
        (("import", "hf", "model", "--output", "there"), False, False),
    ],
)
def test_what_needs_the_internet_gets_it_and_what_begins_anew_is_not_gone_on_with(
    folder: Path, sent: list[BackgroundCommand], words: tuple[str, ...], goes_on: bool, internet: bool
) -> None:
    (folder / "config" / "opsctl").mkdir(parents=True)
    (folder / "config" / "opsctl" / "profile.toml").write_text('[jobs]\npartition = "in"\ninternet_partition = "out"\n')
    write_run(folder)
    assert opsctl(*words, "--job") == 0
    (command,) = sent
    assert (command.words, command.goes_on) == (words, goes_on)
    assert dict(command.options)["partition"] == ("out" if internet else "in")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--partition", "p"), r"--partition\b.*--job\b"),
        (("--job", "--time", "soon"), "--time 'soon'"),
        (("--job", "--run", "nowhere"), "'nowhere'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    folder: Path, words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("checkpoints", "prune", *words) in (1, 2)
    assert re.search(why, capsys.readouterr().err)


def test_a_job_of_a_job_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PROGRESS_VARIABLE, str(folder / "progress.json"))
    assert opsctl("data", "prepare", "x", "--output-prefix", "y", "--job") == 2
    assert "--job" in capsys.readouterr().err


def test_where_slurm_takes_nothing_nothing_is_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("data", "prepare", "x", "--output-prefix", "y", "--job") == 1
    assert "sbatch" in capsys.readouterr().err
    assert opsctl("jobs", "--json") == 0
    assert printed("jobs list", capsys.readouterr().out) == []


@pytest.mark.parametrize(
    "words",
    [
        *(("checkpoints", "convert"), ("checkpoints", "prune"), ("data", "prepare"), ("data", "index")),
        *(("export", "hf"), ("import", "hf"), ("hub", "sync")),
    ],
)
def test_every_long_command_can_be_a_job(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl(*words, "--help") == 0
    assert "--job" in capsys.readouterr().out
    assert command_records({"XDG_STATE_HOME": "/x"}).root == Path("/x/opsctl/errands")
