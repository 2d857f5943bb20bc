"""The times of a planned job."""

from __future__ import annotations

import pytest

from opsctl.run.config.schema import ExpectTable, GpuTable, SlurmTable
from opsctl.run.planning.costs import exit_duration_minutes, job_section, time_sections
from opsctl.run.planning.gpus import assumed_speed
from opsctl.run.planning.plan import PlannedJob, PlannedTime
from opsctl.run.planning.schedule import ramp_of
from tests.unit.trainer.recipe.test_throughput import BATCH, BLOOM, GPUS, MODEL, SECONDS, bloom
from trainer.recipe.layout import Layout
from trainer.recipe.options import parse


def test_spare_nodes_and_the_probe_are_counted() -> None:
    slurm = SlurmTable(nodes=48, gpus_per_node=8, time="20:00:00", spare=2)
    section = job_section(slurm, ExpectTable())
    assert isinstance(section.values, PlannedJob)
    assert (section.values.spare_nodes, section.values.spare_gpu_hours_per_day) == (2, 384.0)
    assert section.values.probe == "quick" and section.values.probe_most_s <= 60
    assert [text for _, text in section.rows if "384 GPU hours" in text and "4.17 %" in text]
    plain = job_section(SlurmTable(nodes=48, gpus_per_node=8, time="20:00:00"), ExpectTable())
    assert len(plain.rows) == len(section.rows) - 2


@pytest.mark.parametrize(
    ("time", "margin", "minutes"),
    [("20:00:00", "10:00", 1190), ("100:00:00", "10:00", 5990), ("4-04:00:00", "10:00", 5990), ("2:00", "0:30", 1)],
)
def test_the_exit_duration_is_the_limit_less_the_margin(time: str, margin: str, minutes: int) -> None:
    slurm = SlurmTable(nodes=1, gpus_per_node=1, time=time, exit_margin=margin)
    assert exit_duration_minutes(slurm) == minutes


def planned_time(expect: ExpectTable, gpu_type: str | None) -> PlannedTime | None:
    """Return the time in a plan of BLOOM on such GPUs."""
    options = parse(BLOOM.split())
    ramp = ramp_of(options)
    assert ramp is not None
    slurm = SlurmTable(nodes=48, gpus_per_node=8, time="20:00:00", gpu_type=gpu_type)
    assumed = assumed_speed(GpuTable(), slurm, "bf16")
    sections = time_sections(expect, options, bloom().shape, ramp, Layout(GPUS, 4, 12, 8), assumed)
    found = [one.values for one in sections if isinstance(one.values, PlannedTime)]
    return found[0] if found else None


def test_a_plan_without_a_measured_speed_assumes_a_share_of_the_gpus_peak() -> None:
    """BLOOM's log has the seconds of a step, the papers its model FLOPs."""
    found = planned_time(ExpectTable(), "gpu:a100:8")
    assert found is not None and found.assumed_mfu == 0.4
    days = 220_000_000 / BATCH * SECONDS * MODEL / (0.4 * 312) / 86400
    assert found.days_at_assumed_mfu == pytest.approx(days, rel=1e-3)
    assert found.gpu_hours_at_assumed_mfu == pytest.approx(days * 24 * GPUS, rel=1e-3)


def test_a_speed_that_is_expected_or_measured_replaces_the_assumption() -> None:
    found = planned_time(ExpectTable(seconds_per_iteration=SECONDS), "a100")
    assert found is not None and found.days_at_expected_seconds is not None
    assert found.assumed_mfu is found.days_at_assumed_mfu is None
    assert planned_time(ExpectTable(), "k80") is None
