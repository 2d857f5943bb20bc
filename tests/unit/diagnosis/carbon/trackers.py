"""Trackers for tests, in kWh and seconds, and their files."""

from __future__ import annotations

from datetime import UTC, datetime

from trainer.formats.attempt.carbon import Beside, Reading, file_text

BEGAN_S = datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp()
HOUR_S = 3600.0


def ours(
    host: str,
    job: str,
    share: float = 1.0,
    devices: tuple[str, ...] | None = ("GPU-a", "GPU-b"),
    *,
    run_id: str = "",
    began_h: float = 0.0,
    hours: float = 1.0,
    kw: tuple[float, float, float] = (0.5, 0.1, 1.4),
) -> Reading:
    """Return a tracker of a node of cpu, ram and gpu kW, with the job's share of cpu and ram; 100 g per kWh."""
    cpu, ram, gpu = (one * hours for one in kw)
    began_s = BEGAN_S + began_h * HOUR_S
    return Reading(
        file=f"emissions-{job}-{host}.csv",
        run_id=run_id or f"{job} {host}",
        began_s=began_s,
        duration_s=hours * HOUR_S,
        cpu_kwh=cpu * share,
        ram_kwh=ram * share,
        gpu_kwh=gpu,
        emissions_kg=((cpu + ram) * share + gpu) / 10,
        beside=Beside(host, job, devices, share, datetime.fromtimestamp(began_s, UTC), True, "intel_rapl", "model"),
    )


def record(run_id: str, hours: float = 1.0, gpu_kwh: float = 4.0) -> str:
    """Return the file of a tracker."""
    values = {
        "timestamp": "2026-03-01T12:00:00",
        "run_id": run_id,
        "duration": hours * HOUR_S,
        "emissions": (gpu_kwh + 0.6 * hours) / 10,
        **dict.fromkeys(("cpu_power", "ram_power", "gpu_power"), 1.0),
        "cpu_energy": 0.5 * hours,
        "ram_energy": 0.1 * hours,
        "gpu_energy": gpu_kwh,
        "energy_consumed": gpu_kwh + 0.6 * hours,
    }
    return file_text(values, Beside("n1", "7", None, 1.0, datetime.fromtimestamp(BEGAN_S, UTC), True))
