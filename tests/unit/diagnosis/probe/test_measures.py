from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.probe.measures import deviations, minority, slowness, usual_and_deviation


@given(st.lists(st.floats(1e-3, 1e6), min_size=3, max_size=60))
def test_usual_is_the_median_of_logarithms(values: list[float]) -> None:
    usual, deviation = usual_and_deviation(values)
    logs = numpy.log(values)
    assert usual == pytest.approx(float(numpy.exp(numpy.median(logs))))
    spread = 1.4826 * float(numpy.median(numpy.abs(logs - numpy.median(logs))))
    assert deviation == pytest.approx(max(spread, 0.005 + 0.3 / len(values)))


def test_twice_as_slow_is_as_far_whichever_way_the_number_counts() -> None:
    assert slowness(5.0, 10.0, True) == slowness(20.0, 10.0, False) == 2.0
    assert slowness(0.0, 10.0, True) == slowness(math.nan, 10.0, True) == math.inf
    assert deviations(math.inf, 0.1) == math.inf and deviations(0.5, 0.1) < 0


def test_nobody_is_in_the_minority_where_no_text_has_more_than_half() -> None:
    assert minority({"a": "1", "b": "2"}) == ("", {})
    assert minority({"a": "1", "b": "2", "c": "2"}) == ("2", {"a": "1"})
    assert minority({}) == ("", {})
