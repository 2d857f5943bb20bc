from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from trainer.formats.attempt.carbon import Beside, Reading, file_name, file_text, newest_totals, read

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
        values = {"timestamp": "2026-03-01T10:00:00", "run_id": "r", "duration": 1.0, **NODE}
        text = file_text(values, replace(BESIDE, devices=devices))
        assert read("f.csv", text)[0][0].beside == replace(BESIDE, devices=devices)


def test_two_attempts_two_nodes_and_two_trackers_of_one_name_their_files_apart() -> None:
    names = {file_name(*one) for one in [("7", "n1", "a"), ("8", "n1", "a"), ("7", "n2", "a"), ("7", "n1", "b")]}
    assert len(names) == 4
    assert file_name("", "../n 1", "0123456789ab") == "emissions-local-.._n_1-01234567.csv"


def test_of_copies_and_older_totals_the_longest_counts_once() -> None:
    short, longer, other = (
        written(run_id, duration=duration_s, gpu_energy=kwh)
        for run_id, duration_s, kwh in (("r", 3600.0, 4.0), ("r", 5400.0, 6.0), ("s", 60.0, 1.0))
    )
    readings = [*read("a/e.csv", short)[0], *read("b/e.csv", longer)[0], *read("c/e.csv", other)[0]]
    found = newest_totals(readings)
    assert [(one.file, one.gpu_kwh) for one in found] == [("a/e.csv", 6.0), ("c/e.csv", 1.0)]
    assert found == newest_totals(reversed(readings))


def test_a_torn_last_line_is_said_and_not_read() -> None:
    head, line = written().splitlines()
    for end in range(1, len(line) + 1):
        readings, problems = read("f.csv", f"{head}\n{line[:end]}")
        assert readings == [] and len(problems) == 1 and problems[0].startswith("f.csv: ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"duration": float("nan")}, "nan is not an amount"),
        ({"duration": -1}, "-1 is not an amount"),
        ({"duration": "soon"}, "soon"),
    ],
)
def test_what_is_no_reading_is_said_with_its_line_and_hides_no_other(changes: dict[str, Any], said: str) -> None:
    head, good = written().splitlines()
    bad = written(**changes).splitlines()[1]
    readings, problems = read("f.csv", "\n".join([head, bad, "1,2,3", good, ""]))
    assert len(readings) == 1
    assert [problem.split(" is skipped")[0] for problem in problems] == ["f.csv line 2", "f.csv line 3"]
    assert said in problems[0]


def test_a_file_of_codecarbon_itself_names_no_host_and_is_not_read() -> None:
    text = "timestamp,run_id,duration,emissions\n2022-03-01T10:00:00,r,1,1\n2022-03-01T10:00:01,r,2,1\n"
    assert read("e.csv", text) == ([], ["e.csv is skipped: codecarbon's own file, which names no host"])
    assert read("f.csv", "a,b\n1,2\n")[0] == []
    assert read("f.csv", "")[0] == []


def test_a_reading_of_ours_is_no_different_for_a_clock_set_back_since() -> None:
    (reading,), _ = read("f.csv", written(timestamp="2026-03-01T07:00:00"))
    assert (reading.began_s, reading.duration_s) == (BESIDE.began_at.timestamp(), 3600.0)
    assert isinstance(reading, Reading)
