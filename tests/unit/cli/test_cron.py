"""`opsctl cron` as typed, where no Slurm answers: the folder, its jobs, what is refused and what a dry run leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.core.timestamps import now
from opsctl.run.state.scheduler import CronPaths, RunEvent, append_run
from tests.printed_json import printed
from tests.unit.cli.called import go_into, opsctl

SCRIPT = "#!/bin/bash\necho mine\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cron folder that this account has, not made yet; the current folder has a script `mine.slurm`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (go_into(tmp_path, monkeypatch) / "mine.slurm").write_text(SCRIPT)
    return tmp_path / "state" / "opsctl" / "cron"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_without_a_folder_there_are_no_jobs_and_looking_makes_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("cron", "status", "--json") in (0, 1)  # no Slurm is here
    assert printed("cron status", capsys.readouterr().out)["jobs"] == []
    assert opsctl("cron", "logs", "mine") == 1 and opsctl("cron", "remove", "mine") == 1
    assert opsctl("cron", "run", "mine") == 1
    assert not folder.exists()


def test_a_job_is_added_listed_replaced_only_on_demand_and_removed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir(parents=True, mode=0o700)
    assert opsctl("cron", "add", "mine.slurm", "--dry-run") == 0 and files(folder) == []
    assert opsctl("cron", "add", "mine.slurm") == 0
    assert opsctl("cron", "add", "mine.slurm", "--daily", "--name", "nightly") == 0
    assert files(folder) == ["cron.daily/nightly.slurm", "cron.hourly/mine.slurm"]
    capsys.readouterr()
    Path("mine.slurm").write_text(SCRIPT + "# newer\n")
    assert opsctl("cron", "add", "mine.slurm") == 1
    said = capsys.readouterr().err
    assert "hourly/mine" in said and "--replace" in said
    assert (folder / "cron.hourly" / "mine.slurm").read_text() == SCRIPT
    assert opsctl("cron", "add", "mine.slurm", "--replace") == 0
    assert (folder / "cron.hourly" / "mine.slurm").read_text().endswith("# newer\n")
    capsys.readouterr()
    assert opsctl("cron", "status", "--json") in (0, 1)  # no Slurm is here
    listed = {job["name"]: job["last"] for job in printed("cron status", capsys.readouterr().out)["jobs"]}
    assert listed == {"hourly/mine": None, "daily/nightly": None}
    assert opsctl("cron", "remove", "mine", "--dry-run") == 0 and len(files(folder)) == 2
    assert opsctl("cron", "remove", "mine") == 0 and files(folder) == ["cron.daily/nightly.slurm"]


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("#!/bin/bash\n#SBATCH --gres=gpu:1\n", [], "gres"),
        ("#!/bin/bash\n#SBATCH --array=1-3\n", [], "array"),
        ("echo no interpreter\n", [], "#!"),
        (SCRIPT, ["--name", "../../etc/x"], "../../etc/x"),
        (SCRIPT, ["--name", "a;b\x1b[2J"], "a;b"),
        (SCRIPT, ["--name", ".hidden"], ".hidden"),
    ],
)
def test_what_could_not_run_is_refused_and_not_copied(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str], said: str
) -> None:
    folder.mkdir(parents=True, mode=0o700)
    Path("mine.slurm").write_text(text)
    assert opsctl("cron", "add", "mine.slurm", *words) != 0
    heard = capsys.readouterr().err
    assert said in heard and "\x1b" not in heard and len(heard.splitlines()) == 1
    assert files(folder) == []


def test_a_shipped_job_is_brought_back_and_an_unknown_one_names_those_there_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir(parents=True, mode=0o700)
    assert opsctl("cron", "add", "--shipped", "fs-watchdog") == 0
    assert files(folder) == ["cron.daily/fs-watchdog.slurm"]
    assert opsctl("cron", "add", "--shipped", "nothing") == 1
    heard = capsys.readouterr().err
    shipped = ("checkpoint-backup", "checkpoint-rotation", "evaluate", "fs-watchdog", "progress", "refill")
    assert all(name in heard for name in (*shipped, "report-publish", "requests", "slurm-status"))
    assert opsctl("cron", "add") == 2 and opsctl("cron", "add", "mine.slurm", "--shipped", "refill") == 2


def test_without_slurm_nothing_is_started_and_nothing_claims_to_be(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("cron", "start", "--dry-run") in (0, 1) and not folder.exists()
    assert opsctl("cron", "start", "--via", "slurm") == 1
    assert "not on PATH" in capsys.readouterr().err
    assert not CronPaths(folder).chain.exists() and not CronPaths(folder).ticks.exists()
    opsctl("cron", "status", "--json")
    assert printed("cron status", capsys.readouterr().out)["state"] == "never started"
    assert opsctl("cron", "run", "refill", "--dry-run") == 0 and opsctl("cron", "run", "refill") == 1
    runs = CronPaths(folder).job_runs
    assert not runs.exists() or '"queued"' not in runs.read_text()


@pytest.mark.parametrize("tick", ["1s", "0", "2:00:00", "soon", "-5s", "\x1b"])
def test_a_tick_that_would_flood_the_queue_or_is_no_time_is_wrong_usage(folder: Path, tick: str) -> None:
    assert opsctl("cron", "start", "--tick", tick) == 2
    assert not folder.exists()


def test_what_the_newest_run_printed_is_shown_with_how_it_ended(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = CronPaths(folder)
    paths.state.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    for number in (1, 2):
        for kind in ("asked", "began", "ended"):
            append_run(paths, RunEvent(event=kind, run=f"r{number}", job="hourly/mine", at=now(), state="failed"))
    assert opsctl("cron", "logs", "mine") == 0
    assert "hourly/mine: failed" in capsys.readouterr().err
    assert opsctl("cron", "logs", "other") == 1
    assert "'other': opsctl cron status" in capsys.readouterr().err
    assert json.loads(paths.job_runs.read_text().splitlines()[-1])["run"] == "r2"
