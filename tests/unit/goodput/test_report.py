from __future__ import annotations

import pytest

from opsctl.goodput.account import account, stays
from opsctl.goodput.glance import ended_or, goodput_seen
from opsctl.goodput.parts import Part
from opsctl.goodput.report import GoodputReport, lines, report, what_next
from tests.unit.goodput.made import BEGINNING, at, attempt, span


def made(failures: int, interval: int | None = 500, saves: bool = True, timed: bool = True) -> GoodputReport:
    """Attempts of 1,000 s, the first ones ended by a lost node 100 s after their checkpoint.

    saves: whether any of them came to one. timed: whether the log says how long they took.
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


def test_the_report_adds_up_and_says_what_to_mend_next() -> None:
    told = made(4)
    assert told.wall_s == 6000.0 == sum(part.wall_s for part in told.parts)
    assert sum(part.wall_percent for part in told.parts) == pytest.approx(100)
    assert told.gpu_hours == pytest.approx(8 * 5000 / 3600) == pytest.approx(sum(p.gpu_hours for p in told.parts))
    assert told.trained_percent == pytest.approx(100 * 4000 / 6000) and told.iterations_lost == 40
    assert told.trained_gpu_percent == pytest.approx(80)
    assert told.next.startswith("waited takes most beside training, 17 % of the time: ")


def test_the_best_save_interval_stands_beside_the_one_in_use() -> None:
    found = made(4).save_interval
    assert (found.failures, found.between_failures_s, found.save_s, found.iterations_now) == (4, 1250.0, 3.0, 500)
    assert found.iterations_best in (8, 9)  # sqrt(2 * 3 s * 1,250 s) = 87 s, of iterations of 10 s
    assert found.lost_percent_now is not None and found.lost_percent_best is not None
    assert found.lost_percent_now > 10 * found.lost_percent_best
    assert "best save interval: " in lines(made(4))[-2] and "; every 500 now, which loses" in lines(made(4))[-2]


def test_of_too_few_failures_nothing_is_said() -> None:
    found = made(2).save_interval
    assert (found.failures, found.iterations_best, found.lost_percent_best) == (2, None, None)
    assert lines(made(2))[-2] == "best save interval: failures so far 2: too few to say, from 3 on; every 500 now"


def test_where_nothing_was_ever_saved_it_says_how_often_to_begin_with() -> None:
    found = made(4, saves=False)
    # A tenth of 1,250 s, of iterations of 10 s.
    assert found.save_interval.iterations_best == 12 and found.save_interval.lost_percent_best is None
    assert "nothing was saved yet and 4 attempts failed" in lines(found)[-2]
    assert lines(found)[-2].endswith(": 12 iterations to begin with; every 500 now")
    assert made(2, saves=False).save_interval.iterations_best is None


def test_saves_that_the_log_does_not_time_are_no_reason_to_guess() -> None:
    found = made(4, timed=False)
    assert found.save_interval.iterations_best is None
    assert "the log does not show what a save and an iteration take" in lines(found)[-2]


def test_the_screen_has_a_row_for_each_part_and_the_sum() -> None:
    screen = lines(made(4))
    assert screen[0].endswith(": 66.7 % of the time trained, 80.0 % of the GPU hours")
    assert screen[1] == "40 iterations of 5 attempts were in vain"
    assert [row.split("  ")[0] for row in screen[3:8]] == [
        "trained",
        "waited",
        "lost to node-failure",
        "started",
        "left",
    ]
    assert screen[-3].split() == ["in", "all", "1:40:00", "100.0", "%", "11.1"]


def test_where_nothing_but_training_took_time_there_is_nothing_to_mend() -> None:
    amounts = account([attempt(1, 0, 100)], [span(1, 0, 0, (5, 100.0))], [BEGINNING], {}, at(100), False)
    amounts.wall_ms[Part.TRAINED, ""] = amounts.wall_ms.get((Part.TRAINED, ""), 0)
    assert what_next(account([], [], [], {}, at(1), None)) == ""


def test_a_glance_tells_what_was_trained_and_what_took_most_beside_it() -> None:
    first = attempt(1, 40, 150, reason="signal", iteration_at_end=9, checkpoint_at_end=5)
    seen = goodput_seen([first], [BEGINNING], 10.0, at(200), False)
    assert seen is not None and (seen.trained_percent, seen.most, seen.most_percent) == (25.0, "idle", 25.0)
    assert seen.told == "about 25 % of the time trained; idle 25 %: opsctl attempts --report"
    running = attempt(1, 40, None)
    seen = goodput_seen([running], [BEGINNING], 10.0, at(140), None, reached=7)
    assert seen is not None and (seen.trained_percent, seen.most) == (50.0, "waited")
    assert goodput_seen([first], [BEGINNING], None, at(200), False) is None
    assert goodput_seen([], [BEGINNING], 10.0, at(200), False) is None


def test_a_finished_training_counts_to_its_end() -> None:
    assert ended_or([attempt(1, 0, 100, reason="finished")], at(900)) == at(100)
    assert ended_or([attempt(1, 0, 100)], at(900)) == at(900)
