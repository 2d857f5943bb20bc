"""The lines that begin and end an attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from opsctl.run.logs.lines import (
    ATTEMPT_MARKS,
    AttemptEnd,
    AttemptStart,
    parse_attempt_time,
    parse_line,
    write_attempt_end,
    write_attempt_start,
)
from tests.facts import missing
from trainer.formats.logs.log_lines import Stamp

NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,9}", fullmatch=True)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(1980, 1, 1), datetime(2200, 1, 1), timezones=ZONES)  # noqa: DTZ001
STARTS = st.builds(
    AttemptStart,
    at=MOMENTS,
    attempt=st.integers(1),
    job=NAMES,
    job_id=st.integers(1),
    requeues=st.integers(0, 9),
    revision=NAMES,
    iteration=st.none() | st.integers(0),
    nodes=st.lists(NAMES, min_size=1).map(tuple),
)
ENDS = st.builds(
    AttemptEnd,
    at=MOMENTS,
    attempt=st.integers(1),
    reason=NAMES,
    exit_code=st.none() | st.integers(0, 255),
    checkpoint=st.none() | st.integers(0),
    first_failure=st.just("") | NAMES,
)


def second(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)


@given(STARTS, ENDS)
def test_when_an_attempt_began_and_ended_is_read_back_with_its_zone(start: AttemptStart, end: AttemptEnd) -> None:
    first, last = write_attempt_start(start), write_attempt_end(end)
    assert parse_attempt_time(first) == Stamp("START TIME", second(start.at)) == parse_line(first)
    assert parse_attempt_time(last) == Stamp("END TIME", second(end.at)) == parse_line(last)
    assert all(one and one.at.tzinfo for one in map(parse_attempt_time, (first, last)))
    assert all(mark in line.encode() for mark in ATTEMPT_MARKS for line in (first, last))


def test_the_lines_have_the_facts_of_an_attempt() -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    start = AttemptStart(
        at=noon, attempt=2, job="7_3", job_id=10, requeues=1, revision="0001-ab", iteration=60, nodes=("x1", "x2")
    )
    facts = ("attempt 2", "job 7_3", "10", "requeued 1", "revision 0001-ab", "iteration 60", "x1 x2")
    assert missing(write_attempt_start(start), *facts) == []
    end = AttemptEnd(at=noon, attempt=2, reason="failed", exit_code=1, checkpoint=None, first_failure="rank 1 on x2")
    assert missing(write_attempt_end(end), "attempt 2", "failed", "exit code 1", "none", "rank 1 on x2") == []


def test_a_moment_that_cannot_be_is_no_record() -> None:
    for moment in ("soon", "2026-13-01T00:00:00+00:00", "0001-01-01T00:00:00+14:00"):
        assert parse_attempt_time(f"START TIME: {moment} attempt 1") is None
