from __future__ import annotations

import json
import re
from collections import OrderedDict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import codecarbon
import msgspec
import pytest

from opsctl.diagnosis.carbon import brief
from opsctl.run.attempts.events import Attempt, append_closed, append_opened
from opsctl.run.config.expanded import trainer_arguments
from opsctl.run.config.load import expanded_file, load_run_file
from opsctl.run.config.paths import RunPaths
from tests.printed_json import printed
from tests.tiny_run import write_run
from tests.unit.cli.called import go_into
from tests.unit.cli.called import opsctl as call
from trainer.formats.attempt.carbon import Beside, file_name, file_text
from trainer.recipe.options import parse

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
VALUES = {
    **{f"{part}_power": 0.0 for part in ("cpu", "ram", "gpu")},
    **{"cpu_energy": 0.5, "ram_energy": 0.1, "gpu_energy": 1.4, "energy_consumed": 2.0, "emissions": 0.2},
    **{"timestamp": "2026-11-21T13:00:00", "duration": 3600.0, "emissions_rate": 0.0, "gpu_count": 4},
}


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run of two nodes with one closed attempt of two hours, of which each node's first hour was measured."""
    run_file = write_run(tmp_path)
    run_file.write_text(run_file.read_text() + "\n[carbon]\npue = 1.5\n")
    go_into(tmp_path, monkeypatch)
    paths = load_run_file(run_file).paths
    paths.codecarbon.mkdir(parents=True)
    attempt = Attempt(number=1, id="a", job_id=13, nodes=("x1", "x2"), opened_at=NOON)
    append_opened(paths, attempt)
    closed_at = NOON + timedelta(hours=2)
    append_closed(paths, msgspec.structs.replace(attempt, reason="finished", closed_at=closed_at, closed_by="job"))
    beside = Beside("x1", "13", ("GPU-a",), 1.0, NOON, True, "intel_rapl", "model", "nvml")
    for host in beside.host, "x2":
        values = OrderedDict({**VALUES, "run_id": f"{host}-of-13"})
        text = file_text(values, replace(beside, host=host))
        (paths.codecarbon / file_name("13", host, f"{host}-of-13")).write_text(text)
    return paths


def test_a_run_is_told_with_its_own_pue_and_what_was_not_measured(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("carbon", "report") == 0
    text = capsys.readouterr().out
    assert re.findall(r"[\d.]+", text.splitlines()[0]) == ["2", "2", "2", "1", "2.00", "4.00"]
    assert re.search(r"6\.00 kWh +0\.60 kg CO2e$", text, re.MULTILINE)
    assert re.search(r"^.*\b2\.00 node hours\b", text.partition("CO2e")[2], re.MULTILINE), "those without a tracker"


def test_json_has_the_same_and_extrapolation_fills_the_rest(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("carbon", "report", "--json", "--extrapolate", "--intensity", "50") == 0
    told = printed("carbon report", capsys.readouterr().out)
    assert told["kwh"] == pytest.approx(12.0)
    assert told["kg"] == pytest.approx(0.6)
    assert [line["how"] for line in told["lines"]] == ["measured", "measured", "estimated", "estimated"]


def test_a_countrys_electricity_is_the_one_in_codecarbons_table(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("carbon", "report", "--json", "--country", "FRA", "--pue", "1") == 0
    told = printed("carbon report", capsys.readouterr().out)
    table = Path(codecarbon.__file__).parent / "data" / "private_infra" / "global_energy_mix.json"
    grams = json.loads(table.read_text())["FRA"]["carbon_intensity"]
    assert told["kg"] == pytest.approx(4.0 * grams / 1000)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--country", "FRA", "--intensity", "5"], r"--country.*--intensity"),
        (["--country", "QQQ"], r"\bQQQ\b"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    paths: RunPaths, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert call("carbon", "report", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(said, line)


def test_status_has_a_line_and_json_where_energy_is_measured(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    call("status")
    assert re.search(r"^carbon +6\.00 kWh, 0\.60 kg CO2e\b.*\b2\.00\b", capsys.readouterr().out, re.MULTILINE)
    call("status", "--json")
    assert printed("status", capsys.readouterr().out)["carbon"]["kwh"] == pytest.approx(6.0)
    for file in paths.codecarbon.iterdir():
        file.unlink()
    call("status", "--json")
    assert printed("status", capsys.readouterr().out)["carbon"] is None


def test_of_more_records_than_a_look_reads_status_tells_what_the_last_report_found(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(brief, "MOST_FILES", 1)
    call("status")
    assert re.search(r"^carbon +.*opsctl carbon report", capsys.readouterr().out, re.MULTILINE)
    assert call("carbon", "report", "--pue", "3") == 0  # another question than the run's own is not remembered
    assert not paths.carbon_seen.exists()
    assert call("carbon", "report") == 0
    capsys.readouterr()
    call("status")
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("carbon "))
    assert re.search(r"6\.00 kWh, 0\.60 kg CO2e\b.*\b2\.00\b.*\b20\d\d-", row), "with the time of the report"


def test_plan_says_kwh_and_kg_ahead_with_an_interval_of_what_is_assumed(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file = Path("run.toml")
    before = run_file.read_text()
    for line, low_w, high_w in (("", 300, 500), ("gpu_power_off_percent = 10\n", 360, 440)):
        run_file.write_text(f"{before}gpu_power_w = 400\nintensity_g_per_kwh = 57\n{line}")
        assert call("plan", "--json") == 0
        told = printed("plan", capsys.readouterr().out)
        hours, carbon = told["time"]["gpu_hours_at_expected_seconds"], told["carbon"]
        for name, power_w in (("low_", low_w), ("", 400), ("high_", high_w)):
            assert carbon[f"{name}kwh"] == pytest.approx(hours * power_w / 1000 * 1.5)
            assert carbon[f"{name}kg"] == pytest.approx(hours * power_w / 1000 * 1.5 * 0.057)
    assert call("plan") == 0
    assert re.search(r"\b400 W\b.*\b360 .*\b440 W\b", capsys.readouterr().out)


def test_the_trainer_is_told_to_measure_where_the_run_file_says_so(paths: RunPaths) -> None:
    run_file = Path("run.toml")
    assert "--codecarbon-dir" not in trainer_arguments(expanded_file(load_run_file(run_file)), paths)
    run_file.write_text(run_file.read_text() + 'measure = true\ncountry = "FRA"\n')
    options = parse(trainer_arguments(expanded_file(load_run_file(run_file)), paths))
    assert (options.codecarbon_dir, options.carbon_country) == (str(paths.codecarbon), "FRA")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('country = "France"', "[carbon] country"),
        ("gpu_power_w = 0", "[carbon] gpu_power_w"),
        ("gpu_power_off_percent = 100", "[carbon] gpu_power_off_percent"),
        ("intensity_g_per_kwh = nan", "[carbon] intensity_g_per_kwh"),
        ('region = "x"', "[carbon] region"),
        ("watts = 3", "[carbon] watts"),
    ],
)
def test_a_wrong_value_of_the_table_is_refused_by_name(
    paths: RunPaths, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    run_file = Path("run.toml")
    run_file.write_text(run_file.read_text() + line + "\n")
    assert call("plan") == 2
    assert said in capsys.readouterr().err
