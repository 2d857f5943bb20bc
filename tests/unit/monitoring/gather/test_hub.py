"""Test what waits to be sent to the hub, of a real run's files and ledger."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from opsctl.core.timestamps import now
from opsctl.monitoring.runner import gather
from opsctl.monitoring.snapshot import Part, Unsent
from opsctl.run.attempts.events import Attempt, append_opened
from opsctl.run.checkpoints.backups import BackedUp, What, record
from opsctl.run.state.run_view import RunView, view
from tests.tiny_run import write_run
from tests.unit.monitoring.run_folder import slurm

NOW = now()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunView:
    """A run whose logs and curves go to a hub."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = write_run(tmp_path / "run")
    with path.open("a") as file:
        file.write('\n[hub]\nrepo = "lab/run"\n')
    found = view(str(path))
    found.paths.state.mkdir(parents=True)
    return found


def write(run: RunView, name: str, at: datetime) -> Path:
    path = run.paths.output / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name} as of {at}\n")
    os.utime(path, (at.timestamp(), at.timestamp()))
    return path


def sent(run: RunView, path: Path, at: datetime) -> None:
    seen, name = path.stat(), str(path.relative_to(run.paths.output))
    line = BackedUp(
        to="lab/run",
        what=What.FILE,
        name=name,
        size=seen.st_size,
        mtime_ns=seen.st_mtime_ns,
        bytes=seen.st_size,
        sent_at=at,
        verified_at=at,
    )
    record(run.paths, [line], run.paths.hub_ledger)


def unsent(run: RunView) -> dict[str, Unsent]:
    seen = gather(run, slurm([]), Part.HUB)
    assert not seen.problems
    return {one.kind: one for one in seen.unsent}


def ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def test_a_file_waits_since_it_changed_until_it_is_sent(run: RunView) -> None:
    assert unsent(run) == {}
    old, new = write(run, "tensorboard/tfevents.1", ago(9)), write(run, "tensorboard/tfevents.2", ago(5))
    assert (unsent(run)["tensorboard"].since, unsent(run)["tensorboard"].files) == (ago(9), 2)
    sent(run, old, ago(8))
    only = unsent(run)["tensorboard"]
    assert (only.since, only.last_sent_at, only.example) == (ago(5), ago(8), "tensorboard/tfevents.2")
    sent(run, new, ago(4))
    assert unsent(run) == {}


def test_a_log_that_grows_waits_since_it_was_last_sent(run: RunView) -> None:
    append_opened(run.paths, Attempt(number=1, id="a", job_id=6, opened_at=ago(20)))
    sent(run, write(run, "logs/main_log.txt", ago(7)), ago(6))
    write(run, "logs/main_log.txt", ago(0))
    assert unsent(run)["logs"].since == ago(6)


def test_a_log_that_a_new_task_writes_on_waits_since_that_began(run: RunView) -> None:
    sent(run, write(run, "logs/main_log.txt", ago(70)), ago(69))
    append_opened(run.paths, Attempt(number=1, id="a", job_id=6, opened_at=ago(0.5)))
    write(run, "logs/main_log.txt", ago(0))
    assert unsent(run)["logs"].since == ago(0.5)


def test_a_run_that_sends_nothing_has_nothing_waiting(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path)))
    write(run, "logs/main_log.txt", ago(50))
    assert unsent(run) == {}
