"""Ticks whose cron folder lies on a real file system that is full to the last byte."""

from __future__ import annotations

from pathlib import Path

from opsctl.run.state.scheduler import read_runs, read_ticks
from opsctl.slurm.states import State
from tests.unit.jobs.scheduler.slurm_in_memory import add
from tests.unit.jobs.scheduler.test_tick import HOUR, NOON, Chain
from tests.unit.monitoring.alerts.test_full_disk import disk
from tests.unit.run.state.test_kill_switch_full_disk import fill_with_data

__all__ = ["disk"]


def test_the_jobs_of_a_full_disk_are_started_once_each_tick_and_the_reserve_is_made_again(disk: Path) -> None:
    chain = Chain(disk / "cron")
    add(chain.cron, "hourly/watch")
    chain.tick(NOON + HOUR)
    reserve = chain.cron.paths.reserve
    assert reserve.exists()
    fill_with_data(disk)
    for hours in (2, 3):
        for job in [one for one in chain.slurm.queue if " run=" in one.comment]:
            chain.slurm.end(job.job_id, State.COMPLETED)
        chain.tick(NOON + hours * HOUR)
        chain.tick(NOON + hours * HOUR)
    assert not reserve.exists()
    assert [(one.due - NOON) / HOUR for one in read_runs(chain.cron.paths)] == [1, 2, 3]
    claimed = [(one.due - NOON) / HOUR for one in read_ticks(chain.cron.paths) if one.event == "claimed"]
    assert claimed == [1, 2, 3]
    (disk / "data").unlink()
    chain.tick(NOON + 4 * HOUR)
    assert reserve.exists()
