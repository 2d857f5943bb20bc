"""Test what a log's records become along the iterations."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.run.logs.lines import AttemptStart, write_attempt_start
from opsctl.run.logs.reader import LogReader
from opsctl.ui.report.curves import ALERT, KILL, REVISION, SAVE, SKIP, SPIKE, START, Course
from opsctl.ui.report.log_tables import progress, starts
from opsctl.ui.report.rows import COLUMNS
from tests.unit.ui.report.made import log_text
from trainer.formats.logs.guard_lines import RunAgain, write_run_again
from trainer.formats.logs.training_line import AlikeLines, TrainingLine, write_training_line

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def course_of(*lines: str) -> Course:
    course, reader = Course(), LogReader()
    for record in reader.feed("\n".join(lines).encode()):
        course.take(record)
    return course


def line(iteration: int, **more: object) -> str:
    known = {"loss": 3.0, "seconds_per_iteration": 10.0, "skipped_iterations": 0, "nan_iterations": 0}
    counted = {"consumed_samples": iteration * 8, "consumed_tokens": iteration * 8 * 64, "global_batch_size": 8}
    made = TrainingLine(
        iteration=iteration,
        total_iterations=100,
        **{**known, **counted, **more},  # type: ignore[arg-type]
    )
    return write_training_line(made)


def start(number: int, at: datetime, iteration: int | None = None, revision: str = "0001-a") -> str:
    return write_attempt_start(
        AttemptStart(
            at=at,
            attempt=number,
            job=f"7_{number}",
            job_id=70 + number,
            requeues=0,
            revision=revision,
            iteration=iteration,
            nodes=("a", "b"),
        )
    )


def test_what_a_line_does_not_say_is_nan_and_all_columns_are_of_one_length() -> None:
    course = course_of(line(1), line(2, loss=None), line(3))
    assert [len(course.column(name)) for name in COLUMNS] == [3] * len(COLUMNS)
    assert [math.isnan(loss) for loss in course.column("loss")] == [False, True, False]
    assert math.isnan(course.newest("mfu")) and course.newest("tokens_per_second") == pytest.approx(51.2)


def test_iterations_that_were_done_again_count_as_they_were_done_last() -> None:
    course = course_of(line(1), line(2), line(3, loss=9.0), line(2, loss=2.0), line(3, loss=1.0))
    assert list(course.column("iteration")) == [1, 2, 3] and list(course.column("loss")) == [3.0, 2.0, 1.0]
    assert [one.redone for one in course.starts] == [0, 2]
    assert [(one.first, one.last) for one in course.starts] == [(1, 3), (2, 3)]


def test_evaluations_of_what_was_done_again_go_with_it() -> None:
    said = " valid loss at iteration {} | lm loss value: 1.5E+00 | lm loss PPL: 4.5E+00 | "
    course = course_of(line(1), said.format(1), line(2), said.format(2), line(3), line(2))
    assert course.evaluations == {"valid": [(1, 1.5)]}


def test_the_clock_goes_on_by_what_iterations_took_from_the_moments_that_are_told() -> None:
    course = course_of(start(1, NOON), line(1), line(2), start(2, NOON + timedelta(hours=1), 2), line(4))
    begin = NOON.timestamp()
    assert list(course.column("at_s")) == [begin + 10, begin + 20, begin + 3620] and course.has_zone
    unstamped = course_of(line(1), line(2))
    assert list(unstamped.column("at_s")) == [10, 20] and not unstamped.has_zone


def test_what_happened_is_marked_where_it_did() -> None:
    course = course_of(
        start(1, NOON),
        line(1),
        "  successfully saved checkpoint at iteration       1 to /c",
        "[Detected kill switch at /k. Exiting] datetime: 2026-03-01 12:01:00 +00:00",
        start(2, NOON + timedelta(hours=1), 1, "0002-b"),
        line(2, skipped_on_request=1),
        write_run_again(RunAgain(2, "hardware", "another sum")),
        "spike guard: rolled back from iteration 9 to 2, leaving out iterations 5 to 9: loss",
        "***ALERT: t is not RUNNING or SCHEDULED! Alert someone at y***",
    )
    kinds = [(mark.kind, mark.iteration) for mark in course.marks]
    before = [(START, 0), (SAVE, 1), (KILL, 1), (START, 1), (REVISION, 1)]
    assert kinds == [*before, (SKIP, 2), (SPIKE, 2), (SKIP, 2), (ALERT, 2)]
    assert course.starts[0].ended == "kill-switch"


def test_several_lines_of_one_start_are_one_start() -> None:
    course = course_of(
        "  successfully loaded checkpoint from /c at iteration 40",
        "[before the start of training step] datetime: 2022-03-11 19:46:08 ",
        line(41),
        "  will not load any checkpoints and will start from random",
        line(1),
    )
    assert [(one.first, one.last) for one in course.starts] == [(41, 41), (1, 1)]
    assert [mark.kind for mark in course.marks] == [START, START]


def test_a_long_log_is_read_whole() -> None:
    course = course_of(*log_text(3000, restart_every=1137).splitlines())
    assert len(course) == 3000 and course.last_iteration == 3000
    assert set(course.evaluations) == {"valid-en", "valid-fr"}
    assert {mark.kind for mark in course.marks} >= {START, KILL, SAVE, ALERT, REVISION}


def test_the_time_before_the_first_moment_that_is_told_ends_there() -> None:
    told = "[before the start of training step] datetime: 2022-03-11 14:00:00 +00:00"
    course = course_of(line(1), line(2), told, line(3))
    at = datetime(2022, 3, 11, 14, tzinfo=UTC).timestamp()
    assert list(course.column("at_s")) == [at - 10, at, at + 10]
    assert [(mark.kind, mark.at_s) for mark in course.marks] == [(START, at)]
    begun = course_of(line(5), line(6), line(5), told, line(6))
    assert [one.at_s for one in begun.starts] == [None, at - 10, at], "starts and marks go with the lines"
    assert begun.marks[0].at_s == at - 10


def test_a_clock_without_a_zone_beside_one_with_a_zone_is_that_zones() -> None:
    west = timezone(timedelta(hours=-5))
    began = datetime(2026, 4, 27, 10, tzinfo=west)
    lines = [f" [2026-04-27 10:00:{10 * i:02d}]{line(i)}" for i in (1, 2, 3)]
    told = "[before the start of training step] datetime: 2026-04-27 10:00:{:02d} -05:00"
    for text in ([start(1, began), told.format(5), *lines], [*lines[:2], told.format(25), lines[2]]):
        times = [at - began.timestamp() for at in course_of(*text).column("at_s")]
        assert times == [10, 20, 30]


def test_the_clock_of_a_runs_own_log_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        course = Course(is_local=True)
        for record in LogReader().feed(f" [2026-04-27 10:00:10]{line(1)}\n [2026-11-27 10:00:10]{line(2)}\n".encode()):
            course.take(record)
        noon = datetime(2026, 4, 27, 14, 0, 10, tzinfo=UTC).timestamp()
        winter = datetime(2026, 11, 27, 15, 0, 10, tzinfo=UTC).timestamp()
        assert course.clock_s in (noon, winter) and list(course.column("at_s"))[:1] == [noon] and course.has_zone
    finally:
        monkeypatch.undo()
        time.tzset()


def test_what_is_trained_again_is_kept_aside_as_it_was_with_the_time_that_it_took() -> None:
    before = [line(i, loss=5.0) for i in (10, 20, 30)]
    course = course_of(start(1, NOON), *before, start(2, NOON + timedelta(hours=1), 10), *map(line, (20, 30, 40)))
    [gone] = course.superseded
    assert (gone.first, gone.last, gone.iterations, gone.trained_s) == (11, 30, 20, 200.0)
    assert list(gone.rows.column("iteration")) == [20, 30] and list(gone.rows.column("loss")) == [5.0, 5.0]
    assert list(course.column("loss")) == [5.0, 3.0, 3.0, 3.0]
    assert max(gone.rows.column("at_s")) < min(course.column("at_s")[1:]), "each at its own time"
    assert dict(progress(course).rows)["Iterations done again"] == "20, 0:03:20 of training"


def test_what_was_left_out_on_request_took_no_time_and_is_not_trained_again() -> None:
    def left_out(iteration: int) -> str:
        return line(iteration, loss=None, seconds_per_iteration=None, skipped_on_request=1)

    lines = [*map(line, range(1, 11)), *map(left_out, range(11, 91)), *map(line, range(91, 96))]
    assert course_of(*lines).clock_s == 150.0
    assert course_of(*map(line, (10, 20)), line(40, skipped_on_request=15)).clock_s == 10.0 + 100.0 + 50.0
    again = course_of(*lines, line(6))
    [gone] = again.superseded
    assert (gone.first, gone.last, gone.iterations, gone.trained_s) == (6, 95, 10, 100.0)
    rolled_back = course_of(*map(line, range(1, 11)), start(2, NOON, 5), left_out(6), left_out(7), line(8), line(4))
    assert [one.iterations for one in rolled_back.superseded] == [5, 3]


def test_the_first_moment_that_is_told_moves_what_was_trained_again_too() -> None:
    course = course_of(line(1), line(2), line(2), line(2, loss=4.0), line(1), start(2, NOON, 1), line(2))
    first = [min(one.rows.column("at_s")) for one in course.superseded]
    assert first and all(abs(one - NOON.timestamp()) < 100 for one in first)


def test_tokens_per_second_are_those_of_the_samples_since_the_line_before() -> None:
    short = line(1, consumed_samples=800, consumed_tokens=800 * 64)
    longer = line(2, consumed_samples=808, consumed_tokens=800 * 64 + 8 * 512)
    course = course_of(short, longer)
    assert list(course.column("tokens_per_second")) == pytest.approx([0.8 * 64, 0.8 * 512])


def test_a_line_that_two_writers_have_written_is_one_iteration_and_no_start() -> None:
    lines = [one for i in range(1, 6) for one in (line(i), line(i))]
    course = course_of("[before the start of training step] datetime: 2022-03-11 14:00:00 ", *lines)
    assert (
        list(course.column("iteration")) == [1, 2, 3, 4, 5] and course.newest("at_s") - course.column("at_s")[0] == 40
    )
    assert [(one.first, one.last, one.redone) for one in course.starts] == [(1, 5, 0)]


def test_a_loss_that_a_second_line_of_an_iteration_adds_is_in_the_curve() -> None:
    """A program's bar shows a step some moments before its loss is printed."""
    bars = [line(i, loss=None, grad_norm=None) for i in (1, 2)]
    course = course_of(bars[0], bars[1], line(2, loss=2.5, grad_norm=0.5), line(3, loss=None))
    assert [list(course.column(name))[1] for name in ("iteration", "loss", "grad_norm")] == [2, 2.5, 0.5]
    assert len(course) == 3 and not course.superseded
    assert [(one.first, one.last, one.redone) for one in course.starts] == [(1, 3, 0)]


def test_what_was_done_again_counts_from_the_iteration_that_was_loaded() -> None:
    loaded = "  successfully loaded checkpoint from /c at iteration {}"
    before = [line(i) for i in range(10, 501, 10)]
    for iteration, following, redone in ((400, 410, 100), (495, 500, 5), (500, 510, 0)):
        course = course_of(*before, loaded.format(iteration), line(following))
        assert [one.redone for one in course.starts] == [0, redone]


def test_a_rollback_is_no_start_and_takes_away_what_it_takes_back() -> None:
    back = "spike guard: rolled back from iteration 9 to 4, leaving out iterations 5 to 6: loss"
    course = course_of(*(line(i) for i in range(1, 10)), back, line(7, loss=1.0), line(8))
    assert [(one.first, one.last, one.redone) for one in course.starts] == [(1, 8, 5)]
    assert list(course.column("iteration")) == [1, 2, 3, 4, 7, 8]
    assert [mark.kind for mark in course.marks] == [SKIP]


def test_a_duration_that_no_calendar_holds_is_no_error_anywhere() -> None:
    course = course_of(line(1, seconds_per_iteration=1e300), line(2, seconds_per_iteration=math.inf))
    usual = course_of(line(1), line(2))
    assert len(progress(course).rows) < len(progress(usual).rows), "no time that is left"
    assert starts(course).rows
    after = course_of(start(1, NOON), *(line(i, seconds_per_iteration=1e300) for i in range(1, 20)))
    assert progress(after).rows and starts(after).rows


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ((math.nan, 3.0, 2.5), "2.5000, lowest 2.5000 at 3"),
        ((2.5, math.nan), "nan, lowest 2.5000 at 1"),
        ((math.nan,), "nan"),
    ],
)
def test_the_lowest_loss_of_an_evaluation_is_one_that_is_a_number(losses: tuple[float, ...], said: str) -> None:
    evaluated = [text for i, loss in enumerate(losses, 1) for text in (line(i), _evaluated(i, loss))]
    assert dict(progress(course_of(*evaluated)).rows)["Loss of valid"] == said


def _evaluated(iteration: int, loss: float) -> str:
    return f" valid loss at iteration {iteration} | lm loss value: {loss:.6E} | lm loss PPL: 4.5E+00 | "


@pytest.mark.parametrize(
    ("seconds", "form"), [(10.0, r"about 2026-03-01 \d\d:\d\d [+-]\d\d:\d\d,"), (86400.0, r"about 2026-\d\d-\d\d,")]
)
def test_an_end_that_is_near_is_told_with_its_hour_and_a_far_one_as_a_day(seconds: float, form: str) -> None:
    course = course_of(start(1, NOON, 1), *(line(each, seconds_per_iteration=seconds) for each in range(1, 81)))
    assert re.match(form, dict(progress(course).rows)["Done"])


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from(["", "time (ms) | forward: 1.00\n", "START"]), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(["", " [2026-04-27 10:00:00]"]),
)
def test_lines_taken_together_make_the_same_course_as_each_alone(
    steps: list[tuple[int, str, bool]], logger: str
) -> None:
    text, iteration = "", 0
    for number, (step, after, is_back) in enumerate(steps):
        iteration = max(1, iteration - step if is_back and step > 7 else iteration + step)
        more = {"loss": 2.0 + number / 7, "consumed_tokens": 64 * number, "grad_norm": math.inf if step == 3 else 1.0}
        more |= {"skipped_on_request": 1} if step == 5 else {}
        text += f"{logger}{line(iteration, **more)}\n"
        text += f"{start(number, NOON, iteration)}\n" if after == "START" else after
    together, alone = Course(), Course()
    for found in LogReader().feed(text.encode()):
        together.take(found)
        for one in found.lines() if isinstance(found, AlikeLines) else (found,):
            alone.take(one)
    assert together == alone
