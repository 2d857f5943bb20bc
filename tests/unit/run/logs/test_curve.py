"""A training's curve in bounded memory, compared with the means of the same numbers."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from opsctl.run.logs.index import MOST, Curve, curve_of
from trainer.formats.logs.training_line import TrainingLine


def line(iteration: int, loss: float | None = None, seconds: float | None = None) -> TrainingLine:
    return TrainingLine(iteration=iteration, total_iterations=10**6, loss=loss, seconds_per_iteration=seconds)


def test_a_short_training_is_there_line_by_line() -> None:
    points = curve_of(line(i, 10.0 / i, 2.0) for i in range(1, 6)).points()
    assert [(one.iteration, one.loss) for one in points] == [(i, 10.0 / i) for i in range(1, 6)]
    assert {one.seconds_per_iteration for one in points} == {2.0}


@given(st.integers(1, 5000), st.integers(1, 7))
def test_a_long_curve_is_a_bounded_number_of_means_over_equal_stretches(last: int, step: int) -> None:
    taken = [(i, math.sin(i)) for i in range(1, last, step)]
    curve = curve_of(line(i, loss) for i, loss in taken)
    assert len(curve.stretches) <= MOST
    points = curve.points()
    assert len(points) == len({i // curve.width for i, _ in taken})
    for point in points[:3] + points[-3:]:
        inside = [loss for i, loss in taken if 0 <= i - point.iteration < curve.width]
        assert point.loss is not None and math.isclose(point.loss, sum(inside) / len(inside), abs_tol=1e-9)


def test_what_a_restart_has_gone_back_before_is_forgotten() -> None:
    lost = [line(i, 9.0) for i in range(1, 31)]
    again = [line(i, 4.0) for i in range(21, 26)]
    points = curve_of([*lost, *again]).points()
    assert [one.loss for one in points] == [9.0] * 20 + [4.0] * 5
    assert points[-1].iteration == 25


def test_a_loss_that_is_no_number_leaves_the_others_means_alone() -> None:
    curve = curve_of([line(1, 2.0), line(1, math.nan), line(1, math.inf), line(1, None, 3.0)])
    assert curve.points() == [(1, 2.0, 3.0)]
    assert curve_of([line(1)]).points() == [(1, None, None)]


def test_it_goes_on_from_what_was_written_down() -> None:
    whole, half = curve_of(line(i, float(i)) for i in range(5000)), curve_of(line(i, float(i)) for i in range(2500))
    again = msgspec.json.decode(msgspec.json.encode(half), type=Curve)
    for i in range(2500, 5000):
        again.take(line(i, float(i)))
    assert again.points() == whole.points()
