from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from trainer.formats.attempt.carbon import Beside, Reading, file_name, file_text, newest_totals, read

#: Columns of releases, from their documentation and from files that others have published.
RELEASE_1 = (
    "timestamp,experiment_id,project_name,duration,emissions,energy_consumed,country_name,country_iso_code,region,"
    "on_cloud,cloud_provider,cloud_region"
)
RELEASE_2_0 = (
    "timestamp,project_name,run_id,duration,emissions,emissions_rate,cpu_power,gpu_power,ram_power,cpu_energy,"
    "gpu_energy,ram_energy,energy_consumed,country_name,country_iso_code,region,cloud_provider,cloud_region,os,"
    "python_version,cpu_count,cpu_model,gpu_count,gpu_model,longitude,latitude,ram_total_size,tracking_mode,on_cloud"
)
RELEASE_2_3 = RELEASE_2_0.replace("python_version,", "python_version,codecarbon_version,") + ",pue"
RELEASE_3_0 = RELEASE_2_3.replace("run_id,", "run_id,experiment_id,")

NODE = {
    "cpu_power": 100.0,
    "ram_power": 20.0,
    "gpu_power": 800.0,
    "cpu_energy": 0.1,
    "ram_energy": 0.02,
    "gpu_energy": 0.8,
    "energy_consumed": 0.92,
    "emissions": 0.092,
    "emissions_rate": 0.092 / 3600,
    "water_consumed": 0.0,
}
BESIDE = Beside("n1", "810_2", ("GPU-5a", "GPU-6b"), 0.5, datetime(2026, 3, 1, 8, tzinfo=UTC), False, "intel_rapl")


def row(header: str, **cells: Any) -> str:
    """Return a line of a file with those columns."""
    known = {"timestamp": "2022-03-01T10:00:00", "project_name": "codecarbon", "country_name": "France", **cells}
    return ",".join(str(known.get(name, "")) for name in header.split(","))


def written(run_id: str = "a1b2c3d4-0", **changes: Any) -> str:
    values = OrderedDict(
        {"timestamp": "2026-03-01T10:00:00", "run_id": run_id, "duration": 3600.0, **NODE, "gpu_count": 8, "pue": 1.0}
    )
    return file_text({**values, **changes}, BESIDE)


def test_a_file_of_ours_comes_back_with_the_jobs_share_of_cpu_and_ram() -> None:
    (reading,), problems = read("f.csv", written())
    assert problems == []
    assert reading.beside == BESIDE
    assert (reading.cpu_kwh, reading.ram_kwh, reading.gpu_kwh) == (0.05, 0.01, 0.8)
    assert reading.emissions_kg == pytest.approx(0.086)  # 0.1 kg a kWh
    assert reading.began_s == datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp()


def test_the_columns_of_a_file_of_ours_add_up_for_whoever_reads_only_those_of_codecarbon() -> None:
    header, line = written().splitlines()
    cells = dict(zip(header.split(","), line.split(","), strict=True))
    parts = sum(float(cells[f"{part}_energy"]) for part in ("cpu", "ram", "gpu"))
    assert float(cells["energy_consumed"]) == pytest.approx(parts)
    assert float(cells["cpu_power"]) == 50.0


def test_all_gpus_and_none_are_told_apart() -> None:
    for devices in (None, (), ("0",)):
        text = file_text(
            {"timestamp": "2026-03-01T10:00:00", "duration": 1.0, **NODE}, replace(BESIDE, devices=devices)
        )
        assert read("f.csv", text)[0][0].beside == replace(BESIDE, devices=devices)


def test_two_attempts_two_nodes_and_two_trackers_of_one_name_their_files_apart() -> None:
    names = {file_name(*one) for one in [("7", "n1", "a"), ("8", "n1", "a"), ("7", "n2", "a"), ("7", "n1", "b")]}
    assert len(names) == 4
    assert file_name("", "../n 1", "0123456789ab") == "emissions-local-.._n_1-01234567.csv"


@pytest.mark.parametrize("header", [RELEASE_2_0, RELEASE_2_3, RELEASE_3_0])
def test_releases_2_and_3_are_read_with_their_parts(header: str) -> None:
    line = row(
        header,
        run_id="r",
        duration=3600,
        emissions=1,
        cpu_energy=1,
        gpu_energy=2,
        ram_energy=3,
        energy_consumed=6,
        gpu_count="4.0",
        tracking_mode="machine",
    )
    (reading,), problems = read("emissions-000.csv", f"{header}\n{line}\n")
    assert (problems, reading.kwh, reading.gpu_kwh, reading.gpu_count, reading.run_id) == ([], 6.0, 2.0, 4, "r")
    assert reading.ended_s - reading.began_s == 3600


def test_release_1_has_one_sum_and_no_id() -> None:
    line = row(RELEASE_1, experiment_id="x", duration=3600, emissions=1, energy_consumed=6)
    (reading,), _ = read("emissions-000.csv", f"{RELEASE_1}\n{line}\n")
    assert (reading.unsplit_kwh, reading.kwh, reading.run_id, reading.gpu_count) == (6.0, 6.0, "", None)


def total(run_id: str, at: str, duration_s: float, kwh: float, header: str = RELEASE_2_0) -> str:
    return row(
        header,
        run_id=run_id,
        experiment_id=f"{at}{kwh}",
        timestamp=f"2022-03-01T{at}",
        duration=duration_s,
        emissions=kwh / 10,
        gpu_energy=kwh,
        cpu_energy=0,
        ram_energy=0,
        energy_consumed=kwh,
    )


@pytest.mark.parametrize("header", [RELEASE_1, RELEASE_2_0])
def test_of_running_totals_in_one_file_each_tracker_counts_once_with_its_last(header: str) -> None:
    lines = [
        total("first", "10:00:00", 3600, 4, header),
        total("first", "11:00:01", 7200, 9, header),
        total("second", "13:00:00", 1800, 2, header),  # restarted, into the same file
        total("second", "14:00:00", 5400, 5, header),
    ]
    readings, problems = read("emissions-000.csv", "\n".join([header, *lines, ""]))
    assert (problems, sorted(one.kwh for one in readings)) == ([], [5.0, 9.0])


def test_a_clock_that_was_set_in_the_middle_splits_no_tracker_that_has_an_id() -> None:
    forwards = [total("r", "10:00:00", 3600, 4), total("r", "09:10:00", 4200, 5), total("r", "12:30:00", 4800, 6)]
    back = [total("r", "10:00:00", 3600, 4), total("r", "11:00:00", 7200, 5), total("r", "09:30:00", 7800, 6)]
    for lines in (forwards, back):
        readings, _ = read("emissions-000.csv", "\n".join([RELEASE_2_0, *lines, ""]))
        assert [one.kwh for one in readings] == [6.0]


def test_a_copied_file_counts_once_with_or_without_ids() -> None:
    for header in (RELEASE_1, RELEASE_2_0):
        text = "\n".join([header, total("r", "10:00:00", 3600, 4, header), ""])
        longer = text + total("r", "10:30:00", 5400, 6, header) + "\n" if header == RELEASE_2_0 else text
        readings = [*read("a/e.csv", text)[0], *read("b/e.csv", longer)[0]]
        found = newest_totals(readings)
        assert [one.file for one in found] == ["a/e.csv"]
        assert found == newest_totals(reversed(readings))


def test_a_torn_last_line_leaves_the_total_before_it() -> None:
    text = "\n".join([RELEASE_2_3, total("r", "10:00:00", 3600, 4, RELEASE_2_3)]) + "\n"
    last = total("r", "11:00:00", 7200, 9, RELEASE_2_3)
    for end in range(1, len(last) + 1):
        readings, problems = read("f.csv", text + last[:end])
        assert [one.kwh for one in readings] == [4.0]
        (problem,) = problems
        assert problem.startswith("f.csv: ")


def test_what_is_no_reading_is_said_with_its_line_and_hides_no_other() -> None:
    good = total("r", "10:00:00", 3600, 4)
    lines = [
        RELEASE_2_0,
        total("r", "10:00:00", 3600, float("nan")),
        total("r", "10:00:00", -1, 4),
        "1,2,3",
        total("r", "yesterday", 3600, 4),
        good,
        "",
    ]
    readings, problems = read("f.csv", "\n".join(lines))
    assert [one.kwh for one in readings] == [4.0]
    assert [problem.split(" is skipped")[0] for problem in problems] == [f"f.csv line {n}" for n in (2, 3, 4, 5)]
    assert read("f.csv", "a,b\n1,2\n")[0] == []
    assert read("f.csv", "")[0] == []


def test_a_heading_in_the_middle_is_of_what_follows() -> None:
    text = "\n".join(
        [RELEASE_2_0, total("r", "10:00:00", 3600, 4), RELEASE_2_3, total("s", "12:00:00", 3600, 5, RELEASE_2_3), ""]
    )
    assert sorted(one.kwh for one in read("f.csv", text)[0]) == [4.0, 5.0]


def test_the_file_of_a_task_is_a_part_of_its_trackers_and_not_added() -> None:
    header = "task_name," + RELEASE_2_0
    assert read("f.csv", f"{header}\n{total('r', '10:00:00', 3600, 4, header)}\n")[0] == []


def test_a_reading_of_ours_is_no_different_for_a_clock_set_back_since() -> None:
    (reading,), _ = read("f.csv", written(timestamp="2026-03-01T07:00:00"))
    assert (reading.began_s, reading.duration_s) == (BESIDE.began_at.timestamp(), 3600.0)
    assert isinstance(reading, Reading)
