"""Trackers for tests, in kWh and seconds, and their files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from trainer.formats.attempt.carbon import Beside, Reading

BEGAN_S = datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp()
HOUR_S = 3600.0

#: Columns of codecarbon 2.1, in which a tracker for each rank was usual.
OF_RANKS = (
    "timestamp,project_name,run_id,duration,emissions,emissions_rate,cpu_power,gpu_power,ram_power,cpu_energy,"
    "gpu_energy,ram_energy,energy_consumed,country_name,country_iso_code,region,cloud_provider,cloud_region,os,"
    "python_version,codecarbon_version,cpu_count,cpu_model,gpu_count,gpu_model,longitude,latitude,ram_total_size,"
    "tracking_mode,on_cloud"
)


def theirs(
    file: str,
    run_id: str,
    began_h: float = 0.0,
    hours: float = 1.0,
    gpus: int | None = 4,
    kw: tuple[float, float, float] = (0.5, 0.1, 1.4),
    **more: Any,
) -> Reading:
    """Return a tracker of codecarbon itself that measured a node of cpu, ram and gpu kW; 100 g per kWh."""
    cpu, ram, gpu = (one * hours for one in kw)
    return Reading(
        file=file,
        run_id=run_id,
        began_s=BEGAN_S + began_h * HOUR_S,
        duration_s=hours * HOUR_S,
        cpu_kwh=cpu,
        ram_kwh=ram,
        gpu_kwh=gpu,
        unsplit_kwh=0.0,
        emissions_kg=(cpu + ram + gpu) / 10,
        gpu_count=gpus,
        **more,
    )


def ours(
    host: str, job: str, share: float = 1.0, devices: tuple[str, ...] | None = ("GPU-a", "GPU-b"), **more: Any
) -> Reading:
    """Return a tracker of ours, with the job's share of the CPU and memory of `theirs`."""
    whole = theirs(f"emissions-{job}-{host}.csv", more.pop("run_id", f"{job} {host}"), **more)
    beside = Beside(host, job, devices, share, datetime.fromtimestamp(whole.began_s, UTC), True, "intel_rapl", "model")
    cpu, ram = whole.cpu_kwh * share, whole.ram_kwh * share
    emissions = (cpu + ram + whole.gpu_kwh) / 10
    values = {"cpu_kwh": cpu, "ram_kwh": ram, "emissions_kg": emissions, "beside": beside}
    return Reading(**{**whole.__dict__, **values})


def rank_file(run_ids: list[tuple[str, str, float, float]]) -> str:
    """Write a file of codecarbon 2.1 with (run id, time of day, hours, kWh of GPUs) per line, as running totals."""
    names = OF_RANKS.split(",")
    lines = [OF_RANKS]
    for run_id, at, hours, kwh in run_ids:
        cells = {
            "timestamp": f"2022-03-01T{at}",
            "project_name": "codecarbon",
            "run_id": run_id,
            "duration": hours * HOUR_S,
            "emissions": (kwh + 0.6 * hours) / 10,
            "cpu_energy": 0.5 * hours,
            "ram_energy": 0.1 * hours,
            "gpu_energy": kwh,
            "energy_consumed": kwh + 0.6 * hours,
            "gpu_count": 4.0,
            "gpu_model": "4 x Tesla V100-SXM2-32GB",
            "tracking_mode": "machine",
            "on_cloud": "N",
            "codecarbon_version": "2.1.4",
        }
        lines.append(",".join(str(cells.get(name, "")) for name in names))
    return "\n".join([*lines, ""])
