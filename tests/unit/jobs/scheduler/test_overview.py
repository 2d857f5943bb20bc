"""The pseudo-cron on one screen."""

from __future__ import annotations

from pathlib import Path

from opsctl.core.timestamps import now
from opsctl.jobs.scheduler.context import Cron
from opsctl.jobs.scheduler.overview import look, status_lines
from opsctl.run.config.schema import CronTable
from opsctl.run.state.scheduler import CronPaths
from opsctl.slurm.cluster import Cluster
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory


def test_a_chain_whose_record_is_damaged_is_not_said_never_to_have_been_started(tmp_path: Path) -> None:
    cron = Cron(CronPaths(tmp_path), CronTable(), Cluster(), SlurmInMemory(), {})
    assert "opsctl cron start" in status_lines("/c", look(cron, now()), 3)[1]
    cron.paths.state.mkdir()
    cron.paths.chain.write_text('{"token": "a')
    lines = status_lines("/c", look(cron, now()), 3)
    assert lines[1] == "chain     unreadable" and "--take-over" in lines[-1]
