"""What a task leaves behind however it ends. The allocation and Slurm are stand-ins: nothing of them is reached."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.job import batch
from opsctl.job.main_log import MainLog
from opsctl.job.task import Task
from opsctl.records import revisions
from opsctl.runs.load import load_run_file
from tests.tiny_run import ready, write_run
from tests.unit.job.test_task import task_in


@pytest.fixture
def task(tmp_path: Path) -> Task:
    revisions.publish(ready(load_run_file(write_run(tmp_path, train_samples=4000))))
    found = task_in(tmp_path)
    found.paths.kill_switch.write_text("")
    out = os.open(tmp_path / "job.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return replace(found, log=MainLog(found.paths.output, found.paths.main_log, copy_to_fd=out))


def run(task: Task, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(batch, "this_task", lambda *_: task)
    monkeypatch.setenv("PATH", "/nonexistent")
    return batch.run_job(task.paths, task.cluster, datetime.now(UTC), ())


def test_lines_that_the_log_never_took_are_counted_in_the_jobs_output(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.paths.main_log.mkdir()
    assert run(task, monkeypatch) == 0
    said = (tmp_path / "job.out").read_text().splitlines()
    assert "Detected kill switch" in said[0]
    assert said[-1].startswith("opsctl: 1 line is not in") and said[-1].endswith(": see above")


def test_a_task_whose_log_took_everything_says_no_more(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(task, monkeypatch) == 0
    assert (tmp_path / "job.out").read_text() == task.paths.main_log.read_text()
