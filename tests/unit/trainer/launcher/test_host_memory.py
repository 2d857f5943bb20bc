"""Tests of host memory, which `trainer.launcher.node_sampler` contains."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.core.memory_limit import limit_of_cgroups, memory_lines


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_meminfo_is_in_bytes_and_none_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  16 kB\nHugePages_Total:   3\nodd line\n")
    assert memory_lines(tmp_path / "meminfo") == {"MemTotal": 16384, "HugePages_Total": 3}
    assert memory_lines(tmp_path / "none") == {}


def test_the_fullest_group_around_a_process_is_told_without_cache_that_can_go(tmp_path: Path) -> None:
    job = tmp_path / "slurm" / "job_12"
    group(job / "step_0", memory__max="max\n", memory__current="900\n", memory__stat="inactive_file 0\n")
    group(job, memory__max="1000\n", memory__current="990\n", memory__stat="anon 1\ninactive_file 90\n")
    group(tmp_path / "slurm", memory__max="9000", memory__current="990", memory__stat="inactive_file 0\n")
    (tmp_path / "own").write_text("0::/slurm/job_12/step_0\n")
    assert limit_of_cgroups(tmp_path / "own", tmp_path) == (1000, 900)


def test_version_one_counts_alike(tmp_path: Path) -> None:
    files = {"memory__limit_in_bytes": "2000", "memory__usage_in_bytes": "1500"}
    group(tmp_path / "memory" / "slurm", **files, memory__stat="total_inactive_file 500\n")
    (tmp_path / "own").write_text("3:cpu,cpuacct:/x\n4:memory:/slurm\n")
    assert limit_of_cgroups(tmp_path / "own", tmp_path) == (2000, 1000)


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", "", "no number"])
def test_without_a_limit_there_is_none(tmp_path: Path, limit: str) -> None:
    group(tmp_path / "a", memory__max=limit, memory__current="1", memory__stat="")
    (tmp_path / "own").write_text("0::/a\nhalf a line\n")
    assert limit_of_cgroups(tmp_path / "own", tmp_path) is None
    assert limit_of_cgroups(tmp_path / "none", tmp_path) is None
