"""Test what is gathered from the training log."""

from __future__ import annotations

from pathlib import Path

from opsctl.monitoring.gather.records import SERIES_LINES
from opsctl.monitoring.runner import gather
from opsctl.monitoring.snapshot import Part
from opsctl.run.state.run_view import view
from tests.tiny_run import write_run
from tests.unit.monitoring.run_folder import slurm
from trainer.formats.logs.guard_lines import NotRolledBack, RunAgain, write_not_rolled_back, write_run_again


def write_log(folder: Path, iterations: range) -> None:
    lines = [
        f" iteration {n}/ 5000 | consumed samples: {8 * n} | elapsed time per iteration (s): {n % 7}.0 |\n"
        for n in iterations
    ]
    (folder / "output" / "logs").mkdir(parents=True, exist_ok=True)
    with (folder / "output" / "logs" / "main_log.txt").open("a") as log:
        log.write("".join(lines) + "and what others say\n")


def test_the_newest_lines_come_as_logged_over_a_restart_that_repeats_some(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path)))
    write_log(tmp_path, range(1, 901))
    write_log(tmp_path, range(801, 1001))  # after a crash, from the checkpoint of iteration 800
    seen = gather(run, slurm([]), Part.SERIES)
    expected = [*range(101, 901), *range(801, 1001)]
    assert len(expected) == SERIES_LINES
    assert [line.iteration for line in seen.series] == expected


def test_what_the_log_shows_is_the_same_whether_its_lines_are_asked_for_or_not(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path)))
    for iterations in (range(1, 20), range(20, 300)):
        write_log(tmp_path, iterations)
        alone, both = gather(run, slurm([]), Part.LOG), gather(run, slurm([]), Part.LOG | Part.SERIES)
        assert alone.measured == both.measured and alone.log_written_at == both.log_written_at
        assert alone.measured.seconds_per_iteration is not None and alone.series == ()


def test_what_the_spike_guard_said_among_those_lines_comes_with_them(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path)))
    old, new = NotRolledBack(9, "none there"), RunAgain(1100, "hardware", "the replica on x01 (rank 3) differs")
    for iterations, line in ((range(1, 51), old), (range(51, 1101), new), (range(1101, 1110), None)):
        write_log(tmp_path, iterations)
        if line is not None:
            with (tmp_path / "output" / "logs" / "main_log.txt").open("a") as log:
                log.write(f"[default3]:{write_not_rolled_back(line) if line is old else write_run_again(new)}\n")
    seen = gather(run, slurm([]), Part.SERIES)
    assert (seen.guarded, len(seen.series)) == ((new,), SERIES_LINES)


def test_without_a_log_there_are_no_lines(tmp_path: Path) -> None:
    assert gather(view(str(write_run(tmp_path))), slurm([]), Part.SERIES | Part.LOG).series == ()
