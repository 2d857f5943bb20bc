"""When a training will be done."""

from __future__ import annotations

import pytest

from opsctl.ui.report.log_tables import DAY_S, arrival


def test_a_steady_training_arrives_when_its_speed_says() -> None:
    times = [600.0 * number for number in range(144 * 30)]
    found = arrival(times, [float(number) for number in range(len(times))], 1440.0, times[-1])
    assert found is not None
    assert found.early_s == pytest.approx(10 * DAY_S, rel=0.02) == pytest.approx(found.late_s, rel=0.02)


def test_days_that_were_lost_make_it_later_and_the_interval_wider() -> None:
    times, done, now, count = [], [], 0.0, 0
    for day in range(28):
        for number in range(24):
            if day % 4:  # every fourth day nothing ran
                count += 1
                times.append(now + 3600 * number)
                done.append(float(count))
        now += DAY_S
    found = arrival(times, done, 24.0 * 30, now)
    assert found is not None
    assert 36 * DAY_S < found.likely_s < 44 * DAY_S, "30 days of training at three days of four"
    assert found.early_s < found.likely_s - DAY_S and found.likely_s + DAY_S < found.late_s


def test_what_is_done_is_done_and_what_is_too_short_or_stands_tells_nothing() -> None:
    assert arrival([], [], 0.0, 0.0) is not None
    assert arrival([1.0, 2.0], [1.0, 2.0], 5.0, 2.0) is None
    assert arrival([float(one) for one in range(99)], [5.0] * 99, 5.0, 99.0) is None
    assert arrival([float(one) for one in range(99)], [float(one) for one in range(99)], 1e9, 99.0) is None
