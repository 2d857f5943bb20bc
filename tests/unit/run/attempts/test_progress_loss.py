"""A latest checkpoint that is earlier than at the end of the last attempt, without a recorded rollback. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from opsctl.run.attempts.close_lost import went_back
from opsctl.run.attempts.events import Attempt
from trainer.formats.checkpoint.history import Rollback

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LEFT_AT_5700 = Attempt(number=4, id="a", job_id=7, reason="failed", checkpoint_at_end=5700, closed_at=NOON)
OPEN = Attempt(number=5, id="b", job_id=8)


def hours(number: float) -> datetime:
    return NOON + timedelta(hours=number)


def test_a_latest_that_went_back_is_said_with_where_it_was() -> None:
    said = went_back(3900, [LEFT_AT_5700, OPEN], [])
    assert said is not None and "from iteration 5700, where attempt 4 left it, to 3900" in said


@pytest.mark.parametrize(
    ("latest", "attempts", "rollbacks"),
    [
        (5700, [LEFT_AT_5700], []),
        (6000, [LEFT_AT_5700], []),
        (None, [LEFT_AT_5700], []),
        (3900, [], []),
        (3900, [OPEN], []),
        (3900, [LEFT_AT_5700], [Rollback(3900, 5700, at=hours(1))]),
        (4200, [LEFT_AT_5700], [Rollback(3900, 5700, at=hours(1))]),  # and the training continued from there
        (3900, [LEFT_AT_5700], [Rollback(3900)]),
    ],
)
def test_nothing_is_said_of_progress_or_of_a_rollback_on_record(
    latest: int | None, attempts: list[Attempt], rollbacks: list[Rollback]
) -> None:
    assert went_back(latest, attempts, rollbacks) is None


def test_a_rollback_of_last_week_or_to_somewhere_else_explains_nothing() -> None:
    for rollback in (Rollback(3900, 4200, at=hours(-200)), Rollback(5400, 5700, at=hours(1))):
        assert went_back(3900, [LEFT_AT_5700], [rollback]) is not None


def test_a_task_that_left_the_lease_to_another_left_no_checkpoint_there() -> None:
    held = Attempt(number=5, id="h", job_id=8, reason="held", checkpoint_at_end=3000, closed_at=NOON)
    assert went_back(3900, [LEFT_AT_5700, held, OPEN], []) is not None
