"""The rank that failed first."""

from __future__ import annotations

import itertools
import re
import signal
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from opsctl.run.attempts.outcome import describe, elect
from trainer.formats.attempt.attempt_records import Failure

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


KILLED = Failure(rank=5, node="x03", signal=signal.SIGKILL, failed_at=at(0.2), message="killed by SIGKILL")
RESET = Failure(rank=0, node="x01", exit_code=1, failed_at=at(0.1), message="RuntimeError: Connection reset by peer")
ENDED = Failure(rank=2, node="x02", signal=signal.SIGTERM, failed_at=at(0.3), message="killed by SIGTERM")


def test_a_killed_rank_is_the_cause_and_those_it_disconnected_are_not() -> None:
    for order in itertools.permutations([KILLED, RESET, ENDED]):
        cause, others = elect(order)
        assert cause == KILLED
        assert others == (RESET, ENDED)


def test_a_tie_of_clocks_still_names_the_killed_rank() -> None:
    tied = [replace(item, failed_at=at(0)) for item in (RESET, ENDED, KILLED)]
    assert elect(tied)[0] is tied[2]


def test_an_exception_of_its_own_is_the_cause_even_if_noted_after_a_lost_connection() -> None:
    raised = Failure(rank=7, node="x04", exit_code=1, failed_at=at(1), message="ValueError: loss is NaN")
    assert elect([RESET, raised])[0] == raised


def test_what_fails_much_later_does_not_become_the_cause() -> None:
    mopped_up = Failure(rank=3, node="x02", signal=signal.SIGKILL, failed_at=at(35))
    assert elect([mopped_up, RESET])[0] == RESET


def test_a_rank_without_a_word_comes_before_one_that_lost_a_peer() -> None:
    silent = Failure(rank=6, node="x04", exit_code=3, failed_at=at(0.4), message="exited with status 3")
    assert elect([RESET, silent])[0] == silent


def test_what_a_launcher_marks_as_a_follower_is_one() -> None:
    words = "followed another rank's failure: RuntimeError"
    follower = Failure(rank=1, node="x01", exit_code=1, failed_at=at(0), message=words)
    assert elect([follower, KILLED])[0] == KILLED


def test_of_equal_failures_the_earlier_and_then_the_lower_rank_is_the_cause() -> None:
    first, second = (Failure(rank=r, node="x", exit_code=1, failed_at=at(0), message="boom") for r in (4, 9))
    earlier = Failure(rank=11, node="x", exit_code=1, failed_at=at(-1), message="boom")
    assert elect([second, first])[0] == first
    assert elect([second, first, earlier])[0] == earlier


def test_a_failure_without_a_time_loses_to_one_with() -> None:
    timeless = Failure(rank=0, node="x", signal=signal.SIGKILL)
    assert elect([timeless, RESET])[0] == RESET
    assert elect([timeless])[0] == timeless


def test_nothing_failed_nothing_elected() -> None:
    assert elect([]) == (None, ())


def test_a_failure_is_described_in_one_line_that_steers_no_terminal() -> None:
    assert re.fullmatch(r"rank 5 on x03 .*\bSIGKILL", describe(KILLED))
    for message, shown in (("\nboom\nmore", "boom"), ("\x1b[2Jboom", r"\x1b[2Jboom")):
        told = describe(Failure(rank=1, node="x", exit_code=2, message=message))
        assert re.fullmatch(rf"rank 1 on x .*\b2: {re.escape(shown)}", told)
    assert re.fullmatch(r"rank 1 on .*\bSIGSEGV", describe(Failure(rank=1, node="", exit_code=-11)))
