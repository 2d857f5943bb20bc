"""The shipped cron jobs, each run by bash with an `opsctl` that writes down its arguments and fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

JOBS = sorted((Path(__file__).resolve().parents[4] / "cron").glob("*/*.slurm"), key=lambda path: path.name)
#: Jobs whose command reports a run's troubles by its exit code: these are no failure of the job.
HEALTHY_UP_TO = {"fs-watchdog": 2, "refill": 1, "slurm-status": 2}


@pytest.mark.parametrize("job", JOBS, ids=[job.stem for job in JOBS])
def test_a_job_fails_if_its_command_fails(job: Path, tmp_path: Path) -> None:
    for code in (0, 1, 3):
        assert ended_with(job, tmp_path, code) == (0 if code <= HEALTHY_UP_TO.get(job.stem, 0) else code)


def test_the_rotation_deletes_and_the_backup_copies_checkpoints_and_records(tmp_path: Path) -> None:
    jobs = {job.stem: job for job in JOBS}
    ended_with(jobs["checkpoint-rotation"], tmp_path, 0)
    ended_with(jobs["checkpoint-backup"], tmp_path, 1)
    assert (tmp_path / "typed").read_text().splitlines() == [
        "checkpoints prune --all-runs --yes",
        "checkpoints backup --all-runs",
        "backup --all-runs",
        "backup verify --all-runs --sample 2%",
    ]


def ended_with(job: Path, folder: Path, code: int) -> int:
    """Run `job` and return its exit code; every `opsctl` in it exits with `code`."""
    program = folder / "opsctl"
    program.write_text(f'#!/bin/bash\necho "$*" >> {folder}/typed\nexit {code}\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["bash", job], env=environment, timeout=60).returncode
