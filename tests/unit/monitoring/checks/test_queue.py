"""Fewer arrays behind the live one than are to be kept there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from msgspec import structs

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.training import queue
from opsctl.monitoring.snapshot import CronSeen, Snapshot
from opsctl.run.attempts.events import Attempt
from opsctl.run.logs.records import Measured
from opsctl.run.state.kill_switch import KillSwitchState
from opsctl.slurm.types import Job
from tests.facts import missing
from tests.unit.monitoring.jobs import HELD, NOW, RUNNING, WAITING_FOR_CHAIN, WAITING_FOR_TASK, pending
from trainer.formats.logs.training_line import TrainingLine

CRON = CronSeen("/cron", is_started=True)
SETTINGS = Settings("demo", "us", keep_queued=2, time_limit_s=72000, array="1-10%1")
SECOND = pending("Dependency", 25, "1-3%1")


def found(*jobs: Job, settings: Settings = SETTINGS, cron: CronSeen | None = CRON, **seen: object) -> list[str]:
    snapshot = Snapshot(NOW, jobs, was_submitted=True, cron=cron, **seen)  # type: ignore[arg-type]
    return [one.text for one in queue.find(snapshot, settings)]


def test_fewer_queued_arrays_than_wanted_are_found() -> None:
    for jobs, behind in ((RUNNING, WAITING_FOR_TASK, WAITING_FOR_CHAIN), "1 "), ((RUNNING, WAITING_FOR_TASK), "0 "):
        (text,) = found(*jobs)
        assert missing(text, behind, "12_1", "2 ") == []
    assert found(RUNNING, WAITING_FOR_CHAIN, SECOND) == []


def test_what_is_held_is_queued_and_told_elsewhere() -> None:
    assert found(RUNNING, WAITING_FOR_CHAIN, HELD) == []


def test_a_new_live_array_leaves_time_to_refill() -> None:
    young = structs.replace(RUNNING, started_at=NOW - timedelta(minutes=80))
    assert found(young, WAITING_FOR_CHAIN) == []
    assert found(structs.replace(young, started_at=NOW - timedelta(minutes=100)), WAITING_FOR_CHAIN) != []


def attempt(number: int, array: int, began_h: float, ended_h: float | None) -> Attempt:
    """Hours ago."""
    return Attempt(
        number=number,
        id=str(number),
        job_id=number,
        array_job_id=array,
        opened_at=NOW - timedelta(hours=began_h),
        closed_at=None if ended_h is None else NOW - timedelta(hours=ended_h),
        reason=None if ended_h is None else "exit-duration",
    )


def test_the_next_task_of_the_live_array_is_no_new_array() -> None:
    """What was told while its task before ran is told on: else it is over, and new again, with every task."""
    ended = (attempt(1, 12, 40, 21), attempt(2, 12, 20, 0.5))
    assert found(pending("Priority"), attempts=ended) != []
    again = structs.replace(RUNNING, started_at=NOW - timedelta(minutes=5))
    assert found(again, attempts=(*ended, attempt(3, 12, 0.05, None))) != []


def test_an_array_comes_first_when_the_one_before_it_has_ended_not_when_it_gets_nodes() -> None:
    submitted = NOW - timedelta(days=3)
    head = structs.replace(pending("Priority"), submitted_at=submitted)
    begun = structs.replace(RUNNING, submitted_at=submitted, started_at=NOW - timedelta(minutes=5))
    for ended_h, is_found in ((1, False), (2, True)):
        before = (attempt(1, 11, 22, ended_h),)
        assert bool(found(head, attempts=before)) is is_found
        assert bool(found(begun, attempts=before)) is is_found
        assert bool(found(begun, attempts=(*before, attempt(2, 12, 0.05, None)))) is is_found


def test_the_end_of_the_training_needs_no_more() -> None:
    near = Measured(
        seconds_per_iteration=105.0, last_iteration=TrainingLine(iteration=99_700, total_iterations=100_000)
    )
    assert found(RUNNING, WAITING_FOR_TASK, measured=near) == []
    far = Measured(seconds_per_iteration=105.0, last_iteration=TrainingLine(iteration=1, total_iterations=100_000))
    assert found(RUNNING, WAITING_FOR_TASK, measured=far) != []


def test_a_kill_switch_a_brake_and_nobody_who_refills_are_none() -> None:
    assert found(RUNNING, kill_switch=KillSwitchState(Path("/k"), True, True)) == []
    assert found(RUNNING, attempts_without_progress=3) == found(RUNNING, is_finished=True) == []
    assert found(RUNNING, cron=None) == found(RUNNING, cron=structs.replace(CRON, is_started=False)) == []
    assert found(RUNNING, settings=replace(SETTINGS, keep_queued=0)) == found() == []
