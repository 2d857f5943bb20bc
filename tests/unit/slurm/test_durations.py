"""Durations in the forms of sbatch's manual."""

from __future__ import annotations

import pytest

from opsctl.slurm.durations import parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30 * 60),
        ("30:15", 30 * 60 + 15),
        ("2:30:15", 2 * 3600 + 30 * 60 + 15),
        ("1-2", 26 * 3600),
        ("1-2:30", 26 * 3600 + 30 * 60),
        ("1-2:30:15", 26 * 3600 + 30 * 60 + 15),
    ],
)
def test_a_duration_is_read_as_sbatch_reads_it(text: str, seconds: int) -> None:
    assert parse_duration_s(text) == seconds
