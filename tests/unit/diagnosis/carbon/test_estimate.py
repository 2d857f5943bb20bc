from __future__ import annotations

import random

import pytest

from opsctl.diagnosis.carbon.estimate import HOUR_S, Unit, rest_like, t_95


def test_the_rest_has_the_mean_power_of_what_was_measured() -> None:
    rest = rest_like([Unit(10, 20.0), Unit(30, 60.0)], 100)
    assert rest is not None
    assert (rest.kwh, rest.low_kwh, rest.high_kwh) == pytest.approx((200.0, 200.0, 200.0))  # no scatter


def test_one_unit_gives_no_interval_and_none_gives_nothing() -> None:
    rest = rest_like([Unit(10, 20.0)], 100)
    assert rest is not None
    assert (rest.kwh, rest.low_kwh) == (200.0, None)
    assert rest_like([], 100) is None
    assert rest_like([Unit(0, 0)], 100) is None


def test_equal_units_give_the_textbooks_interval() -> None:
    """Three units of an hour with 9, 10 and 11 kWh: mean 10, s 1; three more are 30 +- t(2) s sqrt(3 + 3^2 / 3)."""
    rest = rest_like([Unit(HOUR_S, kwh) for kwh in (9.0, 10.0, 11.0)], 3 * HOUR_S)
    assert rest is not None
    assert rest.low_kwh is not None and rest.high_kwh is not None
    assert (rest.high_kwh - rest.kwh) == pytest.approx(4.303 * (3 + 3) ** 0.5)
    assert (rest.kwh - rest.low_kwh) == pytest.approx(4.303 * (3 + 3) ** 0.5)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    dice, held, trials = random.Random(7), 0, 600
    for _ in range(trials):
        measured = [Unit(HOUR_S, dice.gauss(10, 1)) for _ in range(6)]
        truth = sum(dice.gauss(10, 1) for _ in range(12))
        rest = rest_like(measured, 12 * HOUR_S)
        assert rest is not None and rest.low_kwh is not None and rest.high_kwh is not None
        held += rest.low_kwh <= truth <= rest.high_kwh
    assert 0.92 <= held / trials <= 0.98


def test_students_t_is_that_of_the_tables() -> None:
    """Two-sided 95 %, as printed in any table: 12.706, 2.571, 2.042, 2.021, 2.000, 1.980."""
    assert [t_95(one) for one in (1, 5, 30)] == [12.706, 2.571, 2.042]
    assert [t_95(one) for one in (40, 60, 120)] == pytest.approx([2.021, 2.000, 1.980], abs=2e-3)
