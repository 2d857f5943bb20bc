from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from opsctl.run.config.paths import RunPaths
from opsctl.run.state.space import SpaceLine, append_space, read_space, thinned
from tests.unit.monitoring.jobs import NOW


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path)
    found.state.mkdir()
    return found


def line(at: datetime, name: str = "/scratch", used: int = 5) -> SpaceLine:
    return SpaceLine(name=name, at=at, used_bytes=used, limit_bytes=10, how="statvfs")


def test_what_was_looked_at_is_read_back_oldest_first(paths: RunPaths) -> None:
    assert read_space(paths) == []
    append_space(paths, [line(NOW)], NOW)
    append_space(paths, [line(NOW + timedelta(hours=1)), line(NOW, "/home")], NOW + timedelta(hours=1))
    assert [one.name for one in read_space(paths)] == ["/scratch", "/home", "/scratch"]


def test_looks_of_several_people_within_minutes_are_one(paths: RunPaths) -> None:
    for minutes in (0, 3, 9, 10):
        append_space(paths, [line(NOW + timedelta(minutes=minutes))], NOW + timedelta(minutes=minutes))
    assert [one.at - NOW for one in read_space(paths)] == [timedelta(), timedelta(minutes=10)]


@pytest.mark.parametrize("days", [35, pytest.param(200, marks=pytest.mark.nightly)])
def test_months_of_hourly_lines_stay_few_and_keep_every_hour_of_two_days(paths: RunPaths, days: int) -> None:
    for hour in range(24 * days):
        at = NOW + timedelta(hours=hour)
        append_space(paths, [line(at, used=hour)], at)
    found = read_space(paths)
    assert len(found) <= 600
    lately = [one.used_bytes for one in found if at - one.at <= timedelta(days=2)]
    assert lately == list(range(24 * days - 49, 24 * days))  # every hour of two days
    month = [one for one in found if timedelta(days=2) < at - one.at <= timedelta(days=30)]
    assert 4 * 28 <= len(month) <= 4 * 28 + 400  # what is thinned now and then may still be there


def test_thinning_again_changes_nothing() -> None:
    lines = [line(NOW - timedelta(hours=hour)) for hour in range(24 * 300)]
    once = thinned(lines, NOW)
    assert thinned(once, NOW) == once and once[-1].at == NOW
    assert NOW - once[0].at <= timedelta(days=180)


def test_a_clock_that_was_set_back_stops_no_look_and_one_that_was_years_ahead_leaves_nothing(paths: RunPaths) -> None:
    append_space(paths, [line(NOW + timedelta(hours=1))], NOW + timedelta(hours=1))
    append_space(paths, [line(NOW)], NOW)  # an hour back
    assert len(read_space(paths)) == 2
    assert thinned([line(NOW + timedelta(days=400)), line(NOW)], NOW) == [line(NOW)]


def test_what_a_crash_cut_is_passed_over(paths: RunPaths) -> None:
    append_space(paths, [line(NOW)], NOW)
    with paths.space.open("a") as file:
        file.write('{"name": "/scra')
    append_space(paths, [line(NOW + timedelta(hours=1))], NOW + timedelta(hours=1))
    assert len(read_space(paths)) == 2
