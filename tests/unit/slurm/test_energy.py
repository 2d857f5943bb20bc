"""Test what Slurm itself has counted of jobs' energy. The rows are made: no Slurm here has sensors to count with."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.slurm.rows import FIELD_END, parse_energy
from tests.unit.slurm.test_process import client, fake


def rows(*pairs: tuple[str, str]) -> str:
    return "".join(f"{name}{FIELD_END}{joules}\n" for name, joules in pairs)


@pytest.mark.parametrize(
    ("text", "joules"),
    [
        (rows(("7", "3600000"), ("7.batch", "1000"), ("7.0", "3500000")), {7: 3.6e6}),
        (rows(("7", ""), ("7.batch", "1000"), ("7.0", "3500000"), ("7.extern", "3500000")), {7: 3.5e6}),
        (rows(("7", "0"), ("7.0", "0")), {}),
        (rows(("7", "18446744073709551614")), {}),  # Slurm's "not known"
        (rows(("7", "1"), ("8", "2")), {7: 1.0, 8: 2.0}),
        ("sacct: a word of its own\n", {}),
    ],
)
def test_a_jobs_energy_is_its_own_row_or_its_largest_step_and_never_their_sum(
    text: str, joules: dict[int, float]
) -> None:
    assert parse_energy(text) == joules


def test_sacct_is_asked_for_energy_and_no_accounting_is_no_energy(tmp_path: Path) -> None:
    fake(tmp_path, "sacct", f"echo \"$@\" > {tmp_path}/asked; printf '7\\03736\\n'")
    assert client(tmp_path).energy_j([7, 7]) == {7: 36.0}
    words = (tmp_path / "asked").read_text()
    assert words.endswith(" --format=JobIDRaw,ConsumedEnergyRaw --jobs=7\n")
    assert "--allocations" not in words
    fake(tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert client(tmp_path).energy_j([7]) == {}
