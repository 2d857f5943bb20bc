"""Measurements from a training log."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.lines import parse_lines
from opsctl.run.logs.measurements import measure, measured, recent, recent_and_series
from opsctl.run.logs.pulse import pulse_line
from opsctl.run.logs.records import Measured
from tests.reading import read_so_far_bytes
from trainer.formats.logs.log_lines import CheckpointFailed, CheckpointSaved, CheckpointSaving, write_checkpoint_line
from trainer.formats.logs.training_line import TrainingLine, write_training_line


def train(iteration: int, seconds: float, loss: float = 2.0) -> str:
    return (
        f"[default7]: iteration {iteration:8d}/{1000:8d} | consumed samples: {iteration * 32:12d} |"
        f" elapsed time per iteration (s): {seconds:.2f} | learning rate: 1.000E-05 | global batch size:    32 |"
        f" lm loss: {loss:.6E} | samples per second: {32 / seconds:.3f} | TFLOPs: {100 / seconds:.2f} |"
    )


STARTED = "[before the start of training step] datetime: 2026-03-01 10:00:00 "
EVALUATED = " validation loss at iteration 1 | lm loss value: 2.0E+00 | lm loss PPL: 7.0E+00 | "


def found(*lines: str) -> Measured:
    return measure(list(parse_lines(lines)))


def test_an_empty_log_has_measured_nothing() -> None:
    assert found() == Measured()


def test_the_median_leaves_out_what_one_slow_iteration_took() -> None:
    assert found(*[train(n, 2.0) for n in range(1, 10)], train(10, 90.0)).seconds_per_iteration == 2.0


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=12))
def test_an_iteration_takes_the_median_of_all_but_the_first_after_a_start(hundredths: list[int]) -> None:
    seconds = [number / 100 for number in hundredths]
    lines = [train(number, taken) for number, taken in enumerate([1.0, *seconds], start=1)]
    assert found(STARTED, *lines).seconds_per_iteration == statistics.median(seconds)


def test_the_first_iteration_after_a_start_does_not_count() -> None:
    assert found(STARTED, train(1, 60.0), train(2, 2.0)).seconds_per_iteration == 2.0


def test_iterations_that_were_skipped_on_request_are_reached_and_take_no_time() -> None:
    skipped = [
        f" iteration {n:8d}/    1000 | consumed samples: {n * 32:12d} | number of skipped iterations:   1 |"
        " number of nan iterations:   0 | skipped on request:   1 |"
        for n in range(10, 200)
    ]
    seen = found(*[train(n, 2.0) for n in range(1, 10)], *skipped)
    assert seen.last_iteration is not None and seen.last_iteration.iteration == 199
    assert (seen.seconds_per_iteration, seen.samples_per_second, seen.tflops) == (2.0, 16.0, 50.0)
    again = found(*[train(n, 2.0) for n in range(1, 10)], *skipped, STARTED, *skipped[-3:], train(200, 9.0))
    assert again.seconds_per_iteration == 2.0  # the first iteration after a start does not count


def test_a_save_that_failed_is_known_until_the_next_one_or_start(tmp_path: Path) -> None:
    failed = CheckpointFailed(5, "/c", "cannot write /c/x: No space left on device")
    said = write_checkpoint_line(failed)
    lines = [train(4, 2.0), train(5, 2.0), said, train(6, 2.0)]
    assert found(*lines).failed_save == failed
    later = CheckpointFailed(6, "/c", "cannot write /c/y: No space left on device")
    assert found(*lines, write_checkpoint_line(later), train(7, 2.0)).failed_save == later
    assert found(*lines, write_checkpoint_line(CheckpointSaved(6, "/c"))).failed_save is None
    assert found(*lines, STARTED, train(5, 2.0)).failed_save is None

    paths = RunPaths(tmp_path)
    paths.main_log.parent.mkdir(parents=True)
    paths.main_log.write_text("\n".join([*lines, *(train(n, 2.0) for n in range(7, 200))]) + "\n")
    assert recent_and_series(paths, 1000)[0].failed_save == failed


def test_the_line_that_is_being_written_is_not_the_newest_iteration_yet(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.main_log.parent.mkdir(parents=True)
    whole, half = train(120, 2.0), train(121, 2.0)
    for end in range(half.index("samples:") + 20, len(half)):
        paths.main_log.write_text(f"{whole}\n{half[:end]}")
        seen = measured(paths).last_iteration
        assert seen is not None and seen.consumed_samples in (120 * 32, 121 * 32)
        assert (seen.iteration, seen.loss) == (120, 2.0) or half[:end].rstrip().endswith("|")
    paths.main_log.write_text(f"{whole}\n{half}")
    seen = measured(paths).last_iteration
    assert seen is not None and seen.iteration == 121


def test_a_program_of_unknown_batch_is_measured_too(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.main_log.parent.mkdir(parents=True)
    lines = [TrainingLine(iteration=n, total_iterations=80, seconds_per_iteration=2.0, loss=3.0) for n in range(1, 6)]
    paths.main_log.write_text("".join(f"{write_training_line(line)}\n" for line in lines))
    seen = measured(paths)
    assert seen.last_iteration is not None and seen.last_iteration.iteration == 5
    assert seen.seconds_per_iteration == 2.0


def test_a_start_without_a_stamp_is_seen_by_the_number_that_falls_back() -> None:
    before = [train(n, 2.0) for n in range(1, 10)]
    times = [*before, train(4, 60.0), train(5, 4.0), train(6, 4.0), train(7, 4.0)]
    assert found(*times).seconds_per_iteration == 4.0


def test_how_many_iterations_a_line_stands_for_is_seen_in_their_numbers() -> None:
    assert found(STARTED, *(train(n, 2.0) for n in range(1, 5))).iterations_per_line == 1
    assert found(STARTED, *(train(n, 2.0) for n in range(10, 60, 10)), train(51, 2.0)).iterations_per_line == 10
    assert found(STARTED, train(1, 60.0)).iterations_per_line == 1


def test_a_save_is_under_way_until_the_log_says_how_it_ended_or_goes_on() -> None:
    begun = [STARTED, train(1, 2.0), write_checkpoint_line(CheckpointSaving(1, "/o"))]
    assert found(*begun).is_saving and not found(STARTED, train(1, 2.0)).is_saving
    assert not found(*begun, write_checkpoint_line(CheckpointSaved(1, "/o"))).is_saving
    assert not found(*begun, train(2, 2.0)).is_saving


def test_the_only_iteration_is_better_than_none() -> None:
    assert found(STARTED, train(1, 60.0)).seconds_per_iteration == 60.0


def test_what_another_layout_took_does_not_count_once_there_are_three_iterations() -> None:
    before = [train(n, 2.0) for n in range(1, 20)]
    after = [STARTED, train(20, 50.0), train(21, 4.0), train(22, 4.0), train(23, 4.0)]
    assert found(*before, *after).seconds_per_iteration == 4.0
    assert found(*before, *after[:3]).seconds_per_iteration == 2.0


def test_speeds_come_from_the_same_iterations() -> None:
    measurement = found(*[train(n, 2.0) for n in range(1, 10)])
    assert (measurement.samples_per_second, measurement.tflops) == (16.0, 50.0)


def test_one_slow_save_is_not_what_a_save_takes() -> None:
    took = [300000.0, 1000.0, 77000.0, *([2000.0] * 8)]  # the oldest is one too many to count
    seen = found(train(1, 2.0), *(f"[default0]:time (ms) | save-checkpoint: {ms:.2f}" for ms in took))
    assert (seen.save_seconds, seen.saves, seen.longest_save_seconds) == (2.0, 10, 77.0)
    lone = found(train(1, 2.0), "time (ms) | save-checkpoint: 40000.00")
    assert (lone.save_seconds, lone.saves) == (40.0, 1)


def test_a_save_beside_the_training_takes_what_it_would_by_itself() -> None:
    lines = [f"time (ms) | save-checkpoint: {ms}.00 | save-checkpoint-background: 40000.00" for ms in (500, 700, 900)]
    seen = found(train(1, 2.0), *lines)
    assert (seen.save_seconds, seen.saves, seen.longest_save_seconds) == (40.7, 3, 40.9)


def test_of_several_evaluations_the_median_counts() -> None:
    lines = [
        line for ms in (5000, 720000, 6000) for line in (EVALUATED, f"time (ms) | evaluation: {ms}", train(9, 2.0))
    ]
    seen = found(train(1, 2.0), *lines)
    assert (seen.evaluation_seconds, seen.evaluations, seen.longest_evaluation_seconds) == (6.0, 3, 720.0)


def test_an_evaluation_is_what_the_trainers_timer_says() -> None:
    assert (
        found(train(1, 2.0), EVALUATED, "time (ms) | evaluation: 720000.0", train(2, 9.0)).evaluation_seconds == 720.0
    )


def test_without_a_timer_an_evaluation_is_what_the_iteration_after_it_took_longer() -> None:
    lines = [*[train(n, 2.0) for n in range(1, 9)], EVALUATED, EVALUATED, train(9, 32.0), *[train(10, 2.0)]]
    assert found(*lines).evaluation_seconds == pytest.approx(30.0)


def test_a_save_in_between_is_no_part_of_the_evaluation() -> None:
    lines = [*[train(n, 2.0) for n in range(1, 9)], EVALUATED, "time (ms) | save-checkpoint: 10000.0", train(9, 32.0)]
    assert found(*lines).evaluation_seconds == pytest.approx(20.0)


def test_a_clock_that_stands_still_during_evaluations_measures_none() -> None:
    assert found(*[train(n, 2.0) for n in range(1, 9)], EVALUATED, train(9, 2.05)).evaluation_seconds is None


def test_the_log_interval_multiplies_what_an_evaluation_took() -> None:
    lines = [*[train(10 * n, 2.0) for n in range(1, 9)], EVALUATED, train(90, 5.0)]
    assert found(*lines).evaluation_seconds == pytest.approx(30.0)


def test_the_age_of_the_last_iteration_is_bounded_by_the_first_time_after_it() -> None:
    pulses = [f"[2026-03-01 {hour}:00:00] PULSE: x is waiting to be scheduled [+02:00]" for hour in (13, 14)]
    assert found(train(1, 2.0)).stamped_after_it is None
    assert found(pulses[0], train(1, 2.0)).stamped_after_it is None
    first = datetime(2026, 3, 1, 11, tzinfo=UTC)
    assert found(train(1, 2.0), *pulses).stamped_after_it == first
    ended = "END TIME: 2026-03-01T10:00:00+00:00 attempt 1 ended: failed, exit code 1, last checkpoint none"
    assert found(train(1, 2.0), ended, *pulses).stamped_after_it == datetime(2026, 3, 1, 10, tzinfo=UTC)


def test_a_pulse_that_was_written_in_another_zone_is_as_old_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime(2026, 3, 1, 11, tzinfo=UTC)
    lines = []
    try:
        for zone in ("JST-9", "EST5", "UTC"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            lines.append(pulse_line(at, "x is waiting to be scheduled"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert len(set(lines)) == 3
    assert [found(train(1, 2.0), line).stamped_after_it for line in lines] == [at] * 3


def test_a_time_without_a_zone_bounds_no_age() -> None:
    old = "[2026-03-01 11:00:00] PULSE: x is waiting to be scheduled"
    assert found(train(1, 2.0), old, "[exiting program at iteration 1] datetime: 2026-03-01 11:00:00 ") == found(
        train(1, 2.0)
    )
    left = "[exiting program at iteration 1] datetime: 2026-03-01 12:00:00 +01:00"
    assert found(train(1, 2.0), old, left).stamped_after_it == datetime(2026, 3, 1, 11, tzinfo=UTC)


@pytest.mark.parametrize(
    ("after", "is_followed"),
    [("", False), ("NCCL says something\n", True), ("half a lin", True), (f"{train(8, 2.0)}\n", False)],
    ids=["nothing", "chatter", "half a line", "another iteration"],
)
@pytest.mark.parametrize("look", [recent, measured])
def test_whether_anything_follows_the_last_iteration_is_known(
    tmp_path: Path, look: Callable[[RunPaths], Measured], after: str, is_followed: bool
) -> None:
    paths = log_of(tmp_path, f"before\n{train(7, 2.0)}\n{after}")
    assert look(paths).is_followed == is_followed


def log_of(tmp_path: Path, text: str) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.logs.mkdir()
    paths.main_log.write_text(text)
    return paths


def test_no_log_yet_has_measured_nothing(tmp_path: Path) -> None:
    assert measured(RunPaths(tmp_path)) == recent(RunPaths(tmp_path)) == Measured()


@pytest.mark.parametrize("look", [recent, measured])
def test_of_a_big_log_hardly_more_than_its_end_is_read(tmp_path: Path, look: Callable[[RunPaths], Measured]) -> None:
    paths = log_of(tmp_path, "")
    lines = [train(n, 3.0) for n in range(900, 1000)]
    with paths.main_log.open("wb") as file:
        file.seek(2**26)  # a hole, so that it costs the test no disk
        file.write(("\n" + "\n".join(lines) + "\n" + "noise of a rank\n" * 50_000).encode())
    before = read_so_far_bytes()
    found = look(paths)
    assert read_so_far_bytes() - before < paths.main_log.stat().st_size / 8
    assert found.last_iteration is not None and found.last_iteration.iteration == 999
    assert found.seconds_per_iteration == 3.0


def test_recent_and_measured_agree_on_progress(tmp_path: Path) -> None:
    paths = log_of(tmp_path, "\n".join([train(n, 3.0) for n in range(1, 200)]) + "\n")
    assert recent(paths).last_iteration == measured(paths).last_iteration


def test_any_line_of_the_watchdogs_says_how_long_ago_the_last_iteration_was() -> None:
    """Otherwise `opsctl watch silence`, which appends its findings to the log, would end the silence."""
    at = datetime(2026, 3, 1, 11, tzinfo=UTC)
    line = pulse_line(at, "no iteration logged for 30 min, 30 times what one takes: opsctl logs")
    assert found(train(1, 2.0), line).stamped_after_it == at


def test_torchtitans_steps_are_measured_by_the_rank_of_the_newest(tmp_path: Path) -> None:
    said = "[rank{}]:[titan] 2026-03-01 10:00:{:02d},000 - root - INFO - step: {}  loss:  {}  tps: 9\n"
    paths = RunPaths(tmp_path)
    paths.main_log.parent.mkdir()
    steps = [(rank, 2 * step, step, 9 - step) for step in range(1, 9) for rank in (1, 0)]
    paths.main_log.write_text("".join(said.format(*step) for step in steps))
    for seen in (recent(paths), measured(paths), recent_and_series(paths, 5)[0]):
        assert seen.last_iteration is not None
        assert (seen.last_iteration.iteration, seen.last_iteration.loss) == (8, 1.0)
        assert seen.seconds_per_iteration == 2.0
    assert [line.iteration for line in recent_and_series(paths, 5)[1].iterations] == [4, 5, 6, 7, 8]


def test_the_newest_loss_is_that_of_an_earlier_line_where_the_last_ones_have_none() -> None:
    logged = TrainingLine(iteration=10, total_iterations=100, loss=2.5, nan_iterations=0)
    between = TrainingLine(iteration=13, total_iterations=100)
    assert measure([logged, between]).newest_loss == logged
    assert measure([between]).newest_loss == between and measure([]).newest_loss is None
