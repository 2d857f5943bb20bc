from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.jobs.scheduler.grid import claim_now, covered_until, dues_between, last_due, left_over, moment_of, next_dues
from opsctl.run.state.scheduler import TickEvent

HOUR = 3600
NOON = 1_795_348_800  # 2026-11-22T12:00:00Z
AT = datetime(2026, 11, 22, 12, tzinfo=UTC)


def event(kind: str, due: int, first: int = 0, period_s: int = HOUR) -> TickEvent:
    return TickEvent(event=kind, due=due, first=first or due, at=AT, period_s=period_s)


def test_due_times_are_whole_multiples_of_the_period_since_the_epoch() -> None:
    assert datetime.fromtimestamp(NOON, UTC).isoformat() == "2026-11-22T12:00:00+00:00"
    assert last_due(NOON, HOUR) == last_due(NOON + 3599.9, HOUR) == NOON
    assert next_dues(NOON, HOUR, 2) == next_dues(NOON + 1799.5, HOUR, 2) == [NOON + HOUR, NOON + 2 * HOUR]
    assert next_dues(NOON + 7, 20, 2) == [NOON + 20, NOON + 40]


def test_a_tick_that_starts_late_does_not_shift_the_ones_after_it() -> None:
    events = [event("started", NOON)]
    for late in (0, 1700, 3500, 10):
        due = last_due(NOON + HOUR, HOUR) + HOUR * (len(events) - 1)
        claim = claim_now(events, due + late, HOUR)
        assert claim is not None and (claim.first, claim.due, claim.late_s) == (due, due, late)
        events.append(event("claimed", due))


def test_a_tick_that_waited_for_five_periods_covers_them_all_and_the_next_covers_none_of_them() -> None:
    events = [event("started", NOON)]
    claim = claim_now(events, NOON + 5 * HOUR + 12, HOUR)
    assert claim is not None and (claim.first, claim.due) == (NOON + HOUR, NOON + 5 * HOUR)
    events.append(event("claimed", claim.due, claim.first))
    assert claim_now(events, NOON + 5 * HOUR + 13, HOUR) is None


@pytest.mark.parametrize("late", [0, 1, 30, 3000])
def test_a_day_begins_once_in_24_due_times_and_is_not_missed_when_ticks_are_merged(late: int) -> None:
    days, events = 0, [event("started", NOON)]
    for hour in range(1, 24 * 7 + 1, 5):
        claim = claim_now(events, NOON + hour * HOUR + late, HOUR)
        assert claim is not None
        days += claim.is_daily
        events.append(event("claimed", claim.due, claim.first))
    assert days == 7


def test_an_hour_stepped_back_doubles_nothing_and_loses_nothing() -> None:
    events = [event("started", NOON), event("claimed", NOON + HOUR), event("claimed", NOON + 2 * HOUR)]
    back = NOON + 2 * HOUR + 60 - HOUR
    assert claim_now(events, back, HOUR) is None
    assert claim_now(events, back + 1800, HOUR) is None
    claim = claim_now(events, back + 2 * HOUR, HOUR)
    assert claim is not None and (claim.first, claim.due) == (NOON + 3 * HOUR, NOON + 3 * HOUR)


def test_a_claim_of_a_clock_that_was_a_year_ahead_stops_nothing() -> None:
    wrong = NOON + 365 * 24 * HOUR
    events = [event("started", NOON), event("claimed", wrong, NOON + HOUR)]
    assert covered_until(events, NOON + HOUR, HOUR) == NOON
    claim = claim_now(events, NOON + HOUR + 5, HOUR)
    assert claim is not None and claim.due == NOON + HOUR
    events.append(event("claimed", claim.due))
    assert claim_now(events, NOON + HOUR + 6, HOUR) is None


def test_what_slurm_has_started_for_a_due_time_is_due_whatever_the_nodes_clock_says() -> None:
    assert moment_of(NOON - 2.5, NOON) == NOON
    assert moment_of(NOON + 2.5, NOON) == NOON + 2.5
    assert moment_of(NOON + 2.5, None) == NOON + 2.5


def test_claims_whose_tick_came_to_no_end_are_left_over_until_one_is_done() -> None:
    events = [
        event("claimed", NOON),
        event("claimed", NOON + HOUR),
        event("done", NOON + HOUR),
        event("claimed", NOON + 2 * HOUR),
        event("claimed", NOON + 3 * HOUR),
    ]
    claim = claim_now(events, NOON + 4 * HOUR, HOUR)
    assert claim is not None
    left = [NOON + 3 * HOUR, NOON + 2 * HOUR]
    assert [one.due for one in left_over(events, claim)] == left
    events.append(event("claimed", claim.due, claim.first))
    assert [one.due for one in left_over(events, claim)] == left, "its own claim is not left over"


@given(
    period=st.integers(2, 3600),
    steps=st.lists(st.floats(-4000, 20_000, allow_nan=False), min_size=1, max_size=40),
)
def test_however_the_clock_goes_each_due_time_is_covered_exactly_once(period: int, steps: list[float]) -> None:
    now, begun = float(NOON), last_due(NOON, period)
    events = [event("started", begun, period_s=period)]
    covered: list[int] = []
    latest = now
    for step in steps:
        now += step
        latest = max(latest, now)
        if latest - now > 24 * 3600:
            return  # a clock that far off is another test's
        claim = claim_now(events, now, period)
        if claim is not None:
            covered += dues_between(claim.first, claim.due, period)
            events.append(event("claimed", claim.due, claim.first, period))
    assert covered == [*dues_between(begun + 1, last_due(latest, period), period)]
