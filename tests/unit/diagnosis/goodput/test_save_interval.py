from __future__ import annotations

import math

import pytest

from opsctl.diagnosis.goodput.save_interval import best, best_interval_s, lost_share


def exact_overhead(interval_s: float, save_s: float, mtbf_s: float) -> float:
    """Expected time for each second of work, failures at random: Daly 2006, eq. 20 without restarts."""
    return mtbf_s * (math.exp((interval_s + save_s) / mtbf_s) - 1) / interval_s


@pytest.mark.parametrize(("save_s", "mtbf_s"), [(40.0, 7 * 86400.0), (120.0, 36_000.0), (600.0, 7200.0)])
def test_no_interval_loses_less_by_the_exact_model(save_s: float, mtbf_s: float) -> None:
    found = best_interval_s(save_s, mtbf_s)
    candidates = [found * (0.2 + 0.002 * step) for step in range(2000)]
    least = min(exact_overhead(one, save_s, mtbf_s) for one in candidates)
    assert exact_overhead(found, save_s, mtbf_s) <= least * 1.0005


def test_for_rare_failures_it_is_youngs() -> None:
    assert best_interval_s(1.0, 1e8) == pytest.approx(math.sqrt(2 * 1e8), rel=1e-3)


def test_where_a_save_takes_longer_than_failures_let_it_the_mean_time_between_them_is_taken() -> None:
    assert best_interval_s(100.0, 40.0) == 40.0


def test_blooms_crash_of_seven_hours_says_save_more_often() -> None:
    """BLOOM: a save every 300 iterations of 105 s lost 7.3 hours to one crash; it then saved every 100.

    A save took some 40 s, and a GPU died about once a week.
    """
    found = best(40.0, 7 * 86400.0, 105.0, 300)
    assert 60 <= found.iterations <= 100 and found.lost_share < 0.015
    assert found.lost_share_now is not None and found.lost_share_now > 2 * found.lost_share


def test_a_share_is_no_more_than_all() -> None:
    assert lost_share(0.0, 1.0, 1.0) == lost_share(1e9, 1.0, 1.0) == 1.0
    assert best(1.0, 1e4, 1.0, None).lost_share_now is None
