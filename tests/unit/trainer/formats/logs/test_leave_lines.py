"""Why a training leaves: every reason's line, and read back."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.formats.logs.guard_lines import (
    EARLY_MARKS,
    LEAVES_EARLY,
    Left,
    Reason,
    leave_line,
    nothing_left_line,
    parse_leave,
)

AT = datetime(2022, 3, 11, 19, 46, 8)  # noqa: DTZ001 - the trainer's local time, as logs have it
PATHS = st.from_regex(r"/[\w/ .-]{0,30}[\w-]", fullmatch=True).filter(lambda path: ". Exiting" not in path)
#: What each reason's line names.
DETAILS: dict[Reason, st.SearchStrategy[str]] = {
    Reason.KILL_SWITCH: PATHS,
    Reason.STOP_REQUEST: PATHS,
    Reason.SIGNAL: st.sampled_from(["SIGTERM", "SIGUSR1"]),
    Reason.EXIT_DURATION: st.floats(0, 1e6).map(str),
    Reason.EXIT_INTERVAL: st.integers(0, 10**9).map(str),
    Reason.EXIT_SAMPLES: st.integers(0, 10**12).map(str),
    Reason.SKIPPED_ITERATIONS: st.integers(1, 10**6).map(str),
    Reason.OVERTAKEN: st.from_regex(r"job \d+ of \w+ has taken it with number \d+", fullmatch=True),
    Reason.FINISHED: st.just(""),
}


@given(st.sampled_from(Reason).flatmap(lambda reason: st.tuples(st.just(reason), DETAILS[reason])))
def test_every_reason_is_read_back_with_what_it_names(said: tuple[Reason, str]) -> None:
    reason, detail = said
    assert parse_leave(leave_line(reason, detail, AT)) == Left(reason, detail, AT)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (leave_line(Reason.KILL_SWITCH, "/k", AT), "[Detected kill switch at /k. Exiting]"),
        (leave_line(Reason.STOP_REQUEST, "/s", AT), "[Detected stop request at /s. Exiting]"),
        (leave_line(Reason.SIGNAL, "SIGTERM", AT), "[exiting program after receiving SIGTERM]"),
        (leave_line(Reason.EXIT_DURATION, 1190.5, AT), "[exiting program after 1190.5 minutes]"),
        (leave_line(Reason.EXIT_INTERVAL, 60, AT), "[exiting program at iteration 60]"),
        (leave_line(Reason.OVERTAKEN, "job 7 has it", AT), "[Overtaken by another writer: job 7 has it. Exiting]"),
        (leave_line(Reason.FINISHED, at=AT), "[after training is done]"),
        (nothing_left_line(AT), "[the training is finished, nothing is left to do. Exiting]"),
    ],
)
def test_a_leaving_line_is_the_documented_one(line: str, expected: str) -> None:
    assert line == f"{expected} datetime: 2022-03-11 19:46:08 "


def test_a_task_with_nothing_left_to_do_has_finished() -> None:
    assert parse_leave(nothing_left_line(AT)) == Left(Reason.FINISHED, "", AT)


@pytest.mark.parametrize("reason", Reason)
def test_who_leaves_early_can_be_told_from_the_bytes_and_who_has_finished_cannot(reason: Reason) -> None:
    line = leave_line(reason, "1").encode()
    assert any(mark in line for mark in EARLY_MARKS) == (reason in LEAVES_EARLY) == (reason != Reason.FINISHED)


def test_a_line_whose_end_is_missing_still_says_why() -> None:
    line = leave_line(Reason.KILL_SWITCH, "/k", AT)
    assert parse_leave(line[: line.index("2022") + 4]) == Left(Reason.KILL_SWITCH, "/k", None)
    assert parse_leave(re.sub("-03-", "-99-", line)) is None


def test_words_in_passing_are_no_leaving() -> None:
    assert parse_leave("after training is done we rest") is None
    assert parse_leave("[2022-03-11 19:46:08,1] [INFO] exiting the context") is None
