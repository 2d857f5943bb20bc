"""Which end that Slurm tells closes a run of the pseudo-cron."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl.core.account import account_name
from opsctl.core.timestamps import now
from opsctl.jobs.scheduler.context import job_files
from opsctl.jobs.scheduler.settling import settle
from opsctl.jobs.scheduler.starting import start_job
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory, a_cron

TOKEN = "70ce"


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        ({}, "done"),
        ({"name": "analysis"}, "lost"),
        ({"work_dir": "/elsewhere"}, "lost"),
        ({"user": "another"}, "lost"),
        ({"comment": "opsctl cron=70ce run=another"}, "lost"),
    ],
)
def test_only_the_end_of_the_runs_own_job_closes_it_as_done(tmp_path: Path, shown: dict[str, str], state: str) -> None:
    slurm = SlurmInMemory()
    cron = a_cron(tmp_path / "cron", slurm)
    (cron.paths.hourly / "report.slurm").write_text("#!/bin/bash\n#SBATCH --chdir=/srv\ntrue\n")
    started = start_job(cron, job_files(cron.paths, daily=False)[0], TOKEN, 3600)
    own: dict[str, Any] = {"name": "cron-report", "work_dir": "/srv", "user": account_name(), "submitted_at": now()}
    slurm.end(started.job_id, "COMPLETED", **{**own, **shown})
    (run,) = settle(cron)
    assert run.state == state
