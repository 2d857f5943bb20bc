from __future__ import annotations

import os
import pwd
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.core.account import account_name
from opsctl.core.timestamps import now
from opsctl.jobs.scheduler.context import job_files
from opsctl.jobs.scheduler.job_runs import settle, start_job
from opsctl.jobs.scheduler.setup import prepare
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory, a_cron, add

TOKEN = "70ce"


@pytest.mark.parametrize(
    ("head", "internet", "partition"),
    [
        ("#OPSCTL internet", "prepost", ["prepost"]),
        ("#OPSCTL internet\n#SBATCH -p own", "prepost", ["own"]),
        ("#OPSCTL internet", None, ["cpu"]),
        ("", "prepost", ["cpu"]),
    ],
)
def test_a_job_that_needs_the_internet_goes_where_the_profile_says(
    tmp_path: Path, head: str, internet: str | None, partition: list[str]
) -> None:
    slurm = SlurmInMemory()
    cron = replace(a_cron(tmp_path, slurm, partition="cpu"), internet_partition=internet)
    add(cron, "hourly/one", head=head)
    assert start_job(cron, job_files(cron.paths, False)[0], "abc", 3600).job_id
    assert re.findall(r"^#SBATCH --partition=(.*)$", slurm.scripts[0], re.MULTILINE) == partition


def test_a_start_in_a_folder_that_nothing_else_finds_reports_how_to_name_it(tmp_path: Path) -> None:
    cron = a_cron(tmp_path / "cron", SlurmInMemory())
    (warning,) = prepare(cron)
    assert f"OPSCTL_CRON_FOLDER={tmp_path}/cron" in warning
    there = replace(cron, environment={"OPSCTL_CRON_FOLDER": str(tmp_path / "cron")})
    assert prepare(there) == []


@pytest.mark.parametrize("config", [None, "config"])
def test_a_job_reads_the_profile_and_state_of_the_home_that_its_submitter_had(
    tmp_path: Path, config: str | None
) -> None:
    slurm = SlurmInMemory()
    own = {"HOME": str(tmp_path), **({"XDG_CONFIG_HOME": str(tmp_path / config)} if config else {})}
    cron = replace(a_cron(tmp_path / "cron", slurm), environment=own)
    add(cron, "hourly/one")
    assert start_job(cron, job_files(cron.paths, False)[0], "abc", 3600).job_id
    assert f"export XDG_CONFIG_HOME={tmp_path / (config or '.config')}" in slurm.scripts[0].splitlines()
    assert f"export XDG_STATE_HOME={tmp_path}/.local/state" in slurm.scripts[0].splitlines()


def test_a_job_of_an_account_in_its_own_home_is_told_of_no_folders(tmp_path: Path) -> None:
    slurm = SlurmInMemory()
    cron = replace(a_cron(tmp_path, slurm), environment={"HOME": pwd.getpwuid(os.geteuid()).pw_dir})
    add(cron, "hourly/one")
    assert start_job(cron, job_files(cron.paths, False)[0], "abc", 3600).job_id
    assert "XDG_" not in slurm.scripts[0]


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
