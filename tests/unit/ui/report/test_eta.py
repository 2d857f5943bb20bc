"""When a training will be done."""

from __future__ import annotations

import pytest

from opsctl.ui.report.log_tables import wall_seconds_left

DAY_S = 86_400.0


def test_a_steady_training_arrives_when_its_speed_says() -> None:
    times = [600.0 * number for number in range(144 * 30)]
    left_s = wall_seconds_left(times, [float(number) for number in range(len(times))], 1440.0, times[-1])
    assert left_s == pytest.approx(10 * DAY_S, rel=0.001)


def test_days_that_were_lost_make_it_later() -> None:
    times, done, now, count = [], [], 0.0, 0
    for day in range(28):
        for number in range(24):
            if day % 4:  # every fourth day nothing ran
                count += 1
                times.append(now + 3600 * number)
                done.append(float(count))
        now += DAY_S
    left_s = wall_seconds_left(times, done, 24.0 * 30, now)
    assert left_s is not None and 38 * DAY_S < left_s < 42 * DAY_S, "30 days of training at three days of four"


def test_nothing_done_in_four_weeks_gives_no_end() -> None:
    assert wall_seconds_left([0.0, 1.0], [5.0, 5.0], 5.0, 2.0) is None
    assert wall_seconds_left([0.0, 1.0], [1.0, 2.0], 5.0, 60 * DAY_S) is None
