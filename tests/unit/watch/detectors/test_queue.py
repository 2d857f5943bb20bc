"""Fewer arrays behind the live one than are to be kept there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from opsctl.logs.records import Measured
from opsctl.records.kill_switch import KillSwitchState
from opsctl.slurm.types import Job
from opsctl.watch.detector import Settings
from opsctl.watch.detectors import queue
from opsctl.watch.seen import CronSeen
from opsctl.watch.snapshot import Snapshot
from tests.unit.watch.jobs import HELD, NOW, RUNNING, WAITING_FOR_CHAIN, WAITING_FOR_TASK, pending
from trainer.formats.training_line import TrainingLine

CRON = CronSeen("/cron", is_started=True)
SETTINGS = Settings("demo", "us", keep_queued=2, time_limit_s=72000, array="1-10%1")
SECOND = pending("Dependency", 25, "1-3%1")


def found(*jobs: Job, settings: Settings = SETTINGS, cron: CronSeen | None = CRON, **seen: object) -> list[str]:
    snapshot = Snapshot(NOW, jobs, was_submitted=True, cron=cron, **seen)  # type: ignore[arg-type]
    return [one.text for one in queue.find(snapshot, settings)]


def test_one_where_two_are_kept_is_found_and_none_is_too() -> None:
    words = "arrays wait behind 12_1, and 2 are to be kept there"
    assert found(RUNNING, WAITING_FOR_TASK, WAITING_FOR_CHAIN) == [f"1 {words}"]
    assert found(RUNNING, WAITING_FOR_TASK) == [f"0 {words}"]
    assert found(RUNNING, WAITING_FOR_CHAIN, SECOND) == []


def test_what_is_held_is_queued_and_told_elsewhere() -> None:
    assert found(RUNNING, WAITING_FOR_CHAIN, HELD) == []


def test_a_new_live_array_leaves_time_to_refill() -> None:
    young = replace(RUNNING, started_at=NOW - timedelta(minutes=80))
    assert found(young, WAITING_FOR_CHAIN) == []
    assert found(replace(young, started_at=NOW - timedelta(minutes=100)), WAITING_FOR_CHAIN) != []


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
    assert found(RUNNING, cron=None) == found(RUNNING, cron=replace(CRON, is_started=False)) == []
    assert found(RUNNING, settings=replace(SETTINGS, keep_queued=0)) == found() == []
