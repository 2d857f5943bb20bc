"""The allocation as Slurm's environment describes it, and what `opsctl job run` refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.cli import main
from opsctl.core.errors import UsageError
from opsctl.jobs.runner.task import Allocation, read_allocation


def test_an_array_task_knows_its_place() -> None:
    environment = {
        "SLURM_JOB_ID": "13",
        "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_JOB_NODELIST": "x[03,01-02]",
        "SLURM_JOB_USER": "ann",
        "SLURM_CPUS_PER_TASK": "16",
    }
    found = read_allocation(environment)
    assert found == Allocation(13, 12, "2", 1, ("x03", "x01", "x02"), "ann", 16)
    assert found.display_id == "12_2"


def test_a_job_without_an_array_stands_for_itself() -> None:
    found = read_allocation({"SLURM_JOB_ID": "13", "SLURM_JOB_NODELIST": "x[1-3]", "USER": "bob"})
    assert found == Allocation(13, 13, "", 0, ("x1", "x2", "x3"), "bob", None)
    assert found.display_id == "13"


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": "13"}, {"SLURM_JOB_ID": "?", "SLURM_JOB_NODELIST": "x"}])
def test_outside_of_a_job_it_says_what_starts_it(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"SLURM_JOB_ID.* opsctl submit"):
        read_allocation(environment)


@pytest.mark.parametrize(
    ("submitted_at", "fact"),
    [
        ("yesterday", "ISO 8601"),
        ("2026-11-21T08:00:00", "time zone"),
        ("2026-11-21T08:00:00+00:00", "SLURM_JOB_ID"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    submitted_at: str,
    fact: str,
) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    with pytest.raises(SystemExit) as stop:
        main(["job", "run", "--output-folder", str(tmp_path), "--submitted-at", submitted_at])
    assert stop.value.code in (1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and fact in lines[0]


def test_the_command_is_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "\n  job " not in capsys.readouterr().out
