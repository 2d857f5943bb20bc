"""What a job of the plan takes."""

from __future__ import annotations

import pytest

from opsctl.planning.cost_part import exit_duration_minutes
from opsctl.runs.schema import SlurmTable


@pytest.mark.parametrize(
    ("time", "margin", "minutes"),
    [("20:00:00", "10:00", 1190), ("100:00:00", "10:00", 5990), ("4-04:00:00", "10:00", 5990), ("2:00", "0:30", 1)],
)
def test_the_exit_duration_is_the_limit_less_the_margin(time: str, margin: str, minutes: int) -> None:
    slurm = SlurmTable(nodes=1, gpus_per_node=1, time=time, exit_margin=margin)
    assert exit_duration_minutes(slurm) == minutes
