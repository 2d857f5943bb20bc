"""Test what a task leaves behind however it ends. The allocation and Slurm are stand-ins: nothing of them is
reached.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from opsctl.jobs.runner import batch
from opsctl.jobs.runner.main_log import MainLog
from opsctl.jobs.runner.own_lease import WaitPolicy
from opsctl.jobs.runner.requests import RequestHandler
from opsctl.jobs.runner.standby import Standby
from opsctl.jobs.runner.task import Task
from opsctl.jobs.signals import Signals
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt, append_opened, read
from opsctl.run.config.load import load_run_file
from opsctl.run.state import revisions
from opsctl.run.state.lease import Held
from opsctl.slurm.client import SlurmClient
from tests.tiny_run import ready, write_run
from tests.unit.jobs.runner.test_standby import launch, standby, started  # noqa: F401 - a fixture
from tests.unit.jobs.runner.test_task import task_in
from tests.unit.run.attempts.test_close_lost import NOON, StandIn, end
from trainer.formats.attempt.lease import Holder


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
    assert said[-1].startswith("opsctl: 1 line ") and str(task.paths.main_log) in said[-1]


def test_a_task_whose_log_took_everything_says_no_more(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(task, monkeypatch) == 0
    assert (tmp_path / "job.out").read_text() == task.paths.main_log.read_text()


class StoppedChain(StandIn):
    """A Slurm that notes what is cancelled."""

    cancelled: Sequence[int] = ()

    def cancel(self, ids: Iterable[int], pending_only: bool = False) -> None:
        assert pending_only
        self.cancelled = tuple(ids)


def test_the_third_task_in_a_row_that_a_living_writer_keeps_waiting_ends_its_chain(task: Task) -> None:
    slurm = StoppedChain()
    task = replace(task, client=cast(SlurmClient, slurm))
    held = Held(Holder(1, "other", 5, "ben", "x9"), 0)
    for cancelled in ((), (), (11,)):
        signals = Signals()
        assert batch._leave_without_lease(task, Ending.HELD, batch._why_held(held, signals)) == 1
        assert slurm.cancelled == cancelled
    assert re.search(r"cancelled .*\b11\b", task.paths.main_log.read_text())


def test_what_became_of_an_attempt_that_could_not_say_it_is_one_line_of_the_next_ones_log(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.paths.kill_switch.unlink()
    slurm = StandIn(ends=[end(7, "FAILED", ended_by=9)])
    append_opened(task.paths, Attempt(number=1, id="a", job_id=7, opened_at=NOON))
    monkeypatch.setattr(batch, "client_for", lambda *_, **__: slurm)
    monkeypatch.setattr(batch, "_turn", lambda *_: None)
    task = replace(task, client=cast(SlurmClient, slurm))
    run(task, monkeypatch)
    (said,) = [line for line in task.paths.main_log.read_text().splitlines() if "attempt 1" in line]
    assert said.startswith("opsctl: ") and all(fact in said for fact in ("job 7", "signal", "FAILED"))


def test_an_end_that_a_full_disk_kept_off_the_record_is_recorded_before_the_next_attempt(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Attempt(number=1, id="12-a", job_id=12, opened_at=NOON, user="ann")
    append_opened(task.paths, before)
    ended = msgspec.structs.replace(before, closed_at=NOON, closed_by="job", reason=Ending.SIGNAL)
    handler = cast(RequestHandler, SimpleNamespace(attempt=ended, attempt_ids=["12-a"], to_end=None, news=list))
    monkeypatch.setattr(batch, "_close_lost", lambda task, *_: read(task.paths))
    monkeypatch.setattr(batch, "_turn", lambda *_: None)
    batch._train(task, Signals(), WaitPolicy(), handler)
    first = read(task.paths)[0]
    assert (first.id, first.reason, first.closed_by) == ("12-a", Ending.SIGNAL, "job")


@pytest.mark.parametrize("lost", ["x2", ""])
def test_launchers_on_standby_that_span_a_lost_node_are_not_taken(
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    standby: Standby,  # noqa: F811
    lost: str,
) -> None:
    task.paths.kill_switch.unlink()
    started(standby, tmp_path)
    monkeypatch.setattr(batch, "time_to_train_s", lambda _: None)
    allocation = replace(task.allocation, nodes=("x1", "x2", "x3"))
    task = replace(task, allocation=allocation, spare=1, standby=standby)
    ended = Attempt(number=1, id="a", job_id=12, reason=Ending.NODE_FAILURE if lost else Ending.SIGNAL)
    ended = msgspec.structs.replace(ended, closed_at=NOON, lost_nodes=(lost,) if lost else ())
    handler = cast(RequestHandler, SimpleNamespace(unstarted="", to_end=None))
    again = batch._restarted(task, ended, Signals(), handler)
    assert again is not None and lost not in again.nodes
    assert (standby.take(launch(tmp_path), again.nodes) is None) == bool(lost)
