"""What a job of the plan takes."""

from __future__ import annotations

import pytest

from opsctl.planning.cost_part import exit_duration_minutes, job_section
from opsctl.planning.plan import PlannedJob
from opsctl.runs.schema import ExpectTable, SlurmTable


def test_spare_nodes_and_the_probe_are_counted() -> None:
    slurm = SlurmTable(nodes=48, gpus_per_node=8, time="20:00:00", spare=2)
    section = job_section(slurm, ExpectTable())
    assert isinstance(section.values, PlannedJob)
    assert (section.values.spare_nodes, section.values.spare_gpu_hours_per_day) == (2, 384.0)
    assert section.values.probe == "quick" and section.values.probe_most_s <= 60
    assert ("spare nodes", "2 beside 48: 384 GPU hours a day more, 4.17 %") in section.rows
    plain = job_section(SlurmTable(nodes=48, gpus_per_node=8, time="20:00:00"), ExpectTable())
    assert {name for name, _ in plain.rows}.isdisjoint({"spare nodes", "nodes are tested"})


@pytest.mark.parametrize(
    ("time", "margin", "minutes"),
    [("20:00:00", "10:00", 1190), ("100:00:00", "10:00", 5990), ("4-04:00:00", "10:00", 5990), ("2:00", "0:30", 1)],
)
def test_the_exit_duration_is_the_limit_less_the_margin(time: str, margin: str, minutes: int) -> None:
    slurm = SlurmTable(nodes=1, gpus_per_node=1, time=time, exit_margin=margin)
    assert exit_duration_minutes(slurm) == minutes
