"""`opsctl status`, `queue` and `watch` where there is no Slurm at all, or nothing to look at."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

import pytest

from opsctl.core.files import state_files
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.identity import make_run_id
from opsctl.run.state.revisions import publish
from tests.printed_json import printed
from tests.reading import read_so_far_bytes
from tests.tiny_run import ready, write_checkpoint, write_run
from tests.unit.cli.called import answer, forked, without_slurm


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A run's folder as a submit left it, with a log and no Slurm to ask."""
    run = load_run_file(write_run(tmp_path))
    publish(ready(run))
    make_run_id(run.paths)
    log = tmp_path / "output" / "logs" / "main_log.txt"
    log.parent.mkdir()
    log.write_text(" iteration 7/ 500 | consumed samples: 56 | elapsed time per iteration (s): 2.0 | lm loss: 5.0 |\n")
    return tmp_path


def test_without_slurm_status_shows_what_the_files_say_and_fails_in_one_line(published: Path) -> None:
    found = answer(published, "status")
    assert found.returncode == 1
    assert found.stdout.startswith("tiny  UNKNOWN")
    assert re.search(r"56 of 4,?000 samples, iteration 7 of 500", found.stdout)
    assert found.stderr.count("\n") == 1 and "squeue" in found.stderr


def test_a_status_of_a_log_of_any_size_reads_its_end_and_knows_what_came_long_before(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(published / "output")
    line = paths.main_log.read_text()
    noise = "what others print\n" * (1 << 16)
    with paths.main_log.open("a") as log:
        log.writelines([noise] * 100)
        log.write(line.replace("iteration 7/", "iteration 8/"))
        log.writelines([noise] * 40)
    before = read_so_far_bytes()
    assert "iteration 8 of 500" in answer(published, "status").stdout
    assert read_so_far_bytes() - before < 1 << 27, "the program itself, and the log's end"


PROGRAM = """
[run]
name = "titan"

[slurm]
nodes = 1
gpus_per_node = 1
time = "1:00:00"

[program]
kind = "torchtitan"
command = ["torchrun", "-m", "torchtitan.train"]
steps = 500
"""


def test_status_names_what_cannot_be_done_with_another_program_and_the_minutes_that_a_stop_loses(
    published: Path,
) -> None:
    (published / "run.toml").write_text(PROGRAM)
    for iteration in (100, 400):
        write_checkpoint(published, iteration, iteration)
    assert re.search(r"\bNo save\b.*\b10 min\b", answer(published, "status").stdout)  # 300 steps of 2 s


def test_a_run_that_was_never_submitted_needs_no_slurm_to_say_so(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = answer(tmp_path, "status")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("tiny  NOT SUBMITTED YET")


def test_a_check_of_a_run_that_was_never_submitted_says_just_that_and_nothing_of_a_log(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = answer(tmp_path, "watch", "training")
    assert (found.returncode, found.stderr) == (3, "")
    assert "PULSE: tiny " in found.stdout and found.stdout.count("\n") == 1
    assert not (tmp_path / "output").exists()


def test_without_slurm_the_check_is_unknown_and_its_log_says_so(published: Path) -> None:
    found = answer(published, "watch", "training")
    assert (found.returncode, found.stderr, found.stdout.count("\n")) == (3, "", 1)
    assert re.search(r"PULSE: tiny .*squeue", found.stdout)
    assert (published / "output/logs/main_log.txt").read_text().endswith(found.stdout)


def test_findings_that_the_log_does_not_take_are_printed_and_told_so_in_one_line(published: Path) -> None:
    log = published / "output/logs/main_log.txt"
    log.unlink()
    log.mkdir()
    found = answer(published, "watch", "training")
    assert (found.returncode, found.stdout.count("\n"), found.stderr.count("\n")) == (3, 1, 1)
    assert "PULSE: " in found.stdout and str(log) in found.stderr


def test_the_checks_lines_wait_for_nobody_who_holds_the_log(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = published / "output/logs/main_log.txt"
    # A command that waited for this lock, as for those of other files, would wait for an hour.
    monkeypatch.setattr(state_files.append_bytes, "__defaults__", (3600.0,))
    with log.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        found = forked(published, "watch", "training", environment=without_slurm(published))
    assert found.stdout and log.read_text().endswith(found.stdout)


def test_without_slurm_the_queue_fails_in_one_line(published: Path) -> None:
    found = answer(published, "queue")
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)


def test_json_is_whole_also_without_slurm(published: Path) -> None:
    found = answer(published, "status", "--json")
    value = printed("status", found.stdout)
    assert found.returncode == 1
    assert value["state"] == "unknown" and "not on PATH" in value["slurm_problem"]
    assert value["loss"]["lm_loss"] == 5.0 and value["queue"] is None


def test_the_checks_findings_are_whole_also_without_slurm(published: Path) -> None:
    found = answer(published, "watch", "training", "--no-log", "--json")
    (finding,) = printed("watch training", found.stdout)
    assert (finding["check"], finding["severity"]) == ("training", "unknown")


def test_a_run_file_in_the_middle_of_an_edit_is_told_and_hides_nothing(published: Path) -> None:
    with (published / "run.toml").open("a") as file:
        file.write("not_a_variable = 1\n")
    found = answer(published, "status")
    assert found.returncode == 1 and "iteration 7 of 500" in found.stdout
    assert "not_a_variable" in found.stdout
    assert answer(published, "watch", "training").stdout.count("PULSE: tiny ") == 1


def test_a_broken_run_file_from_which_nothing_was_published_is_an_error(tmp_path: Path) -> None:
    with write_run(tmp_path).open("a") as file:
        file.write("not_a_variable = 1\n")
    found = answer(tmp_path, "status")
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert answer(tmp_path, "watch", "training").returncode == 3


@pytest.mark.parametrize(
    "words",
    [
        ["training"],
        ["training", "--run", "nowhere"],
        ["training", "one", "--run", "other"],
        ["training", "--no-such-option"],
        ["training", "--cluster", "nowhere"],
        ["no-such-check"],
    ],
)
def test_a_check_that_is_called_wrongly_is_unknown(tmp_path: Path, words: list[str]) -> None:
    found = answer(tmp_path, "watch", *words)
    assert found.returncode == 3 and found.stdout == "" and "opsctl: " in found.stderr


def test_watching_and_json_do_not_go_together(published: Path) -> None:
    assert answer(published, "status", "--watch", "--json").returncode == 2
