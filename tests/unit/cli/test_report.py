"""`opsctl report`: the page, where it goes, and what is refused."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.cli import report
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes.exclusion import add
from opsctl.diagnosis.nodes.exclusion_list import own_place
from opsctl.run.config.load import load_run_file
from opsctl.run.config.locate import remember_run
from opsctl.run.state.revisions import publish
from opsctl.run.state.run_view import view
from opsctl.ui.report.curves import Course
from tests.tiny_run import ready, write_run
from tests.unit.cli.called import go_into, opsctl, started
from tests.unit.transfer.hub.sent import Desk, desk
from tests.unit.ui.report.made import log_text, made_run
from trainer.formats.attempt.carbon import Beside, file_name, file_text

__all__ = ["desk"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return go_into(tmp_path, monkeypatch)


def call(*words: str) -> int:
    return opsctl("report", *words)


def test_a_log_alone_is_a_page_here(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "main_log.txt").write_text(log_text(60))
    assert call("--log", "main_log.txt") == 0
    assert "report.html: " in capsys.readouterr().out
    assert "iteration 60 of 60" in (here / "report.html").read_text()


def test_a_log_of_another_program_is_a_page_too(here: Path) -> None:
    line = "Epoch 1 | iter {0} step {0} | loss train: 4.307, val: n/a | iter time: 2.50 ms (step)\n"
    (here / "litgpt.txt").write_text("".join(line.format(step) for step in range(1, 61)))
    assert call("--log", "litgpt.txt") == 0
    assert "iteration 60" in (here / "report.html").read_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\nstarting\nbatch 3 of 9, train loss \x1b[31m2.5\n", "first line with a loss: batch 3 of 9, train loss"),
        ("starting\nnothing else", "first line: starting"),
        ("", "empty"),
    ],
)
def test_a_log_in_no_known_format_is_refused_with_the_formats_and_a_line_of_it(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    (here / "mine.txt").write_text(text)
    assert call("--log", "mine.txt") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "\x1b" not in error
    for part in ("mine.txt", shown, "megatron-deepspeed", "torchtitan", "lightning", "nanogpt"):
        assert part in error
    assert not list(here.glob("*.html"))


def test_a_runs_page_goes_into_its_output_folder_and_names_what_slurm_did_not_say(here: Path) -> None:
    paths = made_run(here, 60)
    assert call() == 0
    assert paths.page == here / "output" / "report" / "index.html"
    assert '"title":"Attempts"' in paths.page.read_text() and "squeue" in paths.page.read_text()


def test_a_run_that_has_no_log_yet_has_a_page(here: Path) -> None:
    made_run(here, 60)
    (here / "output" / "logs" / "main_log.txt").unlink()
    assert call("--output", "page.html") == 0
    assert (here / "page.html").exists()


def test_before_the_first_submit_it_says_that_there_is_no_log(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(here)
    assert call() == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "No such file" not in said


def test_logs_of_one_name_are_told_apart_by_their_folders(here: Path) -> None:
    for name in ("a", "b"):
        (here / name).mkdir()
        (here / name / "main_log.txt").write_text(log_text(20))
    assert call("--log", "a/main_log.txt", "--log", "b/main_log.txt") == 0
    assert "<title>a/main_log.txt and b/main_log.txt</title>" in (here / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--log", "none.txt"], 1, "none.txt"),
        (["--publish", "--log", "x"], 2, "--publish"),
        (["--all-runs", "--output", "x"], 2, "--all-runs"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert call(*words) == code
    assert said in capsys.readouterr().err and not list(here.glob("*.html"))


def test_a_page_that_is_published_is_on_the_hub_as_it_is_here_and_once(desk: Desk) -> None:
    desk.write("logs/main_log.txt", log_text(30).encode())
    words = ["report", "--publish", "--run", str(desk.folder / "run" / "run.toml")]
    done = started(desk.folder, *words, environment=desk.environment())
    assert done.returncode == 0, done.stderr
    assert "tiny: " in done.stdout
    assert desk.downloaded() == {"report/index.html": desk.paths.page.read_bytes()}
    assert b"iteration 30 of 30" in desk.paths.page.read_bytes()


@pytest.mark.parametrize("output", ["main_log.txt", "other.txt"])
def test_a_log_or_another_file_is_never_written_over(
    here: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    (here / "main_log.txt").write_text(log_text(20))
    (here / "other.txt").write_text("months of work")
    before = (here / output).read_bytes()
    assert call("--log", "main_log.txt", "--output", output) == 1
    assert output in capsys.readouterr().err and (here / output).read_bytes() == before


def test_a_log_whose_name_is_no_text_has_a_page(here: Path) -> None:
    log = here / os.fsdecode(b"log-\xff.txt")
    log.write_text(log_text(20))
    assert call("--log", str(log)) == 0
    assert "log-\ufffd.txt" in (here / "report.html").read_text()


def test_all_runs_pages_tell_what_was_published_measured_and_excluded(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    for name in ("one", "two", "without-log"):
        remember_run(name, write_run(here / name, name=name))
        if name != "without-log":
            log = here / name / "output" / "logs" / "main_log.txt"
            log.parent.mkdir(parents=True)
            log.write_text(log_text(60))
    run = load_run_file(here / "one" / "run.toml")
    first = publish(ready(run), "from the plan")
    second = publish(ready(load_run_file(write_run(here / "one", name="one", lr="5e-4"))), "slower")
    add(own_place(run.paths), ["x07"], "loud fan", now() + timedelta(days=9))
    run.paths.codecarbon.mkdir()
    parts = dict.fromkeys(("cpu_power", "ram_power", "gpu_power", "emissions_rate", "water_consumed"), 1.0)
    parts |= {"cpu_energy": 0.5, "ram_energy": 0.25, "gpu_energy": 1.5, "energy_consumed": 2.25, "emissions": 0.125}
    ended = {"timestamp": "2026-03-01T10:00:00", "run_id": "a1", "duration": 3600.0, "gpu_count": 8, "pue": 1.0}
    tracked = Beside("x07", "12_1", None, 1.0, datetime(2026, 3, 1, 9, tzinfo=UTC), True)
    (run.paths.codecarbon / file_name("12_1", "x07", "a1")).write_text(file_text({**ended, **parts}, tracked))

    assert call("--all-runs") == 0, capsys.readouterr().err
    tables = {name: told(here / name / "output" / "report" / "index.html") for name in ("one", "two")}
    assert not (here / "without-log" / "output").exists()
    assert [(row[0], row[3]) for row in tables["one"]["Revisions"]] == [
        (second.name, "slower"),
        (first.name, "from the plan"),
    ]
    [node] = [row for row in tables["one"]["Nodes"] if row[0] == "x07"]
    assert node[4].partition(": ")[2] == "loud fan"
    assert tables["one"]["Carbon"] == [
        ["Electricity", "2.25 kWh"],
        ["CO2e", "0.12 kg"],
        ["Node hours measured", "1.0"],
    ]
    assert not {"Revisions", "Carbon", "Nodes"} & set(tables["two"]), "of another run nothing"


def told(page: Path) -> dict[str, list[list[str]]]:
    """The tables of a page, by their titles."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found is not None
    return {one["title"]: one["rows"] for one in json.loads(found[1])["runs"][0]["tables"]}


def test_a_run_whose_log_breaks_the_page_keeps_no_other_run_from_its_own(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for name in ("a", "b"):
        (here / name).mkdir()
        found.append((name, view(str(made_run(here / name, 20).output.parent / "run.toml"))))
    monkeypatch.setattr(report, "each_run", lambda *_: iter(found))
    taken = Course.take

    def breaking(course: Course, record: object) -> None:
        if not (here / "tried").exists():
            (here / "tried").touch()
            raise OverflowError("day")
        taken(course, record)  # type: ignore[arg-type]

    monkeypatch.setattr(Course, "take", breaking)
    assert call("--all-runs") == 1
    assert re.search(r"\ba: .*OverflowError: day$", capsys.readouterr().err, re.MULTILINE)
    assert [one.paths.page.exists() for _, one in found] == [False, True]
