from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from opsctl.diagnosis.goodput.account import Part, account, stays
from opsctl.diagnosis.goodput.brief import ended_or, goodput_seen
from opsctl.diagnosis.goodput.report import (
    GoodputReport,
    best,
    best_interval_s,
    interval_line,
    lines,
    lost_share,
    report,
    what_next,
)
from tests.unit.diagnosis.goodput.made import BEGINNING, at, attempt, span


def made(failures: int, interval: int | None = 500, saves: bool = True, timed: bool = True) -> GoodputReport:
    """Return attempts of 1,000 s, the first ones ended by a lost node 100 s after their checkpoint.

    saves: some of them saved. timed: the log has the durations of saves.
    """
    attempts, spans = [], []
    for number in range(1, failures + 2):
        begins, start = 1000.0 * number, 80 * (number - 1)
        reason = "node-failure" if number <= failures else "exit-duration"
        lost = 10 if number <= failures else 0
        kept = start + 80
        saved = {"iteration_at_start": start, "checkpoint_at_end": kept} if saves else {}
        more = {"iteration_at_end": kept + lost, **saved}
        attempts.append(attempt(number, begins, begins + 1000, reason=reason, **more))
        lines_ = [(kept, 800.0)] + ([(kept + lost, 100.0)] if lost else [])
        times = {"saves_s": [2.0, 4.0]} if saves and timed else {}
        spans.append(span(number, start, begins + 50, *lines_, **times))
    until = at(1000.0 * (failures + 2))
    amounts = account(attempts, spans, [BEGINNING], {one.id: 8 for one in attempts}, until, False)
    return report(amounts, stays(attempts, spans, until), BEGINNING, until, 10.0, interval)


def test_the_report_adds_up_and_names_the_part_to_fix_next() -> None:
    told = made(4)
    assert told.wall_s == 6000.0 == sum(part.wall_s for part in told.parts)
    assert sum(part.wall_percent for part in told.parts) == pytest.approx(100)
    assert told.gpu_hours == pytest.approx(8 * 5000 / 3600) == pytest.approx(sum(p.gpu_hours for p in told.parts))
    assert told.trained_percent == pytest.approx(100 * 4000 / 6000) and told.iterations_lost == 40
    assert told.trained_gpu_percent == pytest.approx(80)
    assert told.next.startswith("waiting ") and "17 %" in told.next


def test_the_best_save_interval_stands_beside_the_one_in_use() -> None:
    found = made(4).save_interval
    assert (found.failures, found.between_failures_s, found.save_s, found.iterations_now) == (4, 1250.0, 3.0, 500)
    assert found.iterations_best in (8, 9)  # sqrt(2 * 3 s * 1,250 s) = 87 s, of iterations of 10 s
    assert found.lost_percent_now is not None and found.lost_percent_best is not None
    assert found.lost_percent_now > 10 * found.lost_percent_best


def test_too_few_failures_give_no_best_save_interval() -> None:
    found = made(2).save_interval
    assert (found.failures, found.iterations_best, found.lost_percent_best) == (2, None, None)


def test_where_nothing_was_ever_saved_it_says_how_often_to_begin_with() -> None:
    found = made(4, saves=False)
    # A tenth of 1,250 s, of iterations of 10 s.
    assert found.save_interval.iterations_best == 12 and found.save_interval.lost_percent_best is None
    assert made(2, saves=False).save_interval.iterations_best is None


def test_saves_that_the_log_does_not_time_are_no_reason_to_guess() -> None:
    assert made(4, timed=False).save_interval.iterations_best is None


def test_the_screen_has_a_row_for_each_part_the_sum_and_the_best_save_interval(
    golden: Callable[[str, str], None],
) -> None:
    of_others = [interval_line(one.save_interval) for one in (made(2), made(4, saves=False), made(4, timed=False))]
    golden("goodput/report.txt", "\n".join([*lines(made(4)), "", *of_others, ""]))


def test_where_nothing_but_training_took_time_there_is_nothing_to_mend() -> None:
    amounts = account([attempt(1, 0, 100)], [span(1, 0, 0, (5, 100.0))], [BEGINNING], {}, at(100), False)
    amounts.wall_ms[Part.TRAINED, ""] = amounts.wall_ms.get((Part.TRAINED, ""), 0)
    assert what_next(account([], [], [], {}, at(1), None)) == ""


def test_a_glance_tells_what_was_trained_and_what_took_most_beside_it() -> None:
    first = attempt(1, 40, 150, reason="signal", iteration_at_end=9, checkpoint_at_end=5)
    seen = goodput_seen([first], [BEGINNING], 10.0, at(200), False)
    assert seen is not None and (seen.trained_percent, seen.most, seen.most_percent) == (25.0, "idle", 25.0)
    assert "25 %" in seen.text and "no job" in seen.text and "opsctl attempts --report" in seen.text
    running = attempt(1, 40, None)
    seen = goodput_seen([running], [BEGINNING], 10.0, at(140), None, reached=7)
    assert seen is not None and (seen.trained_percent, seen.most) == (50.0, "waited")
    assert goodput_seen([first], [BEGINNING], None, at(200), False) is None
    assert goodput_seen([], [BEGINNING], 10.0, at(200), False) is None


def test_a_finished_training_counts_to_its_end() -> None:
    assert ended_or([attempt(1, 0, 100, reason="finished")], at(900)) == at(100)
    assert ended_or([attempt(1, 0, 100)], at(900)) == at(900)


def exact_overhead(interval_s: float, save_s: float, mtbf_s: float) -> float:
    """Return the expected time per second of work with random failures: Daly 2006, eq. 20 without restarts."""
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
