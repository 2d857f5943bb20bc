"""The exit duration that Slurm's limit leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from opsctl.job.limit import exit_duration_arguments, exit_minutes
from trainer.recipe.options import Options, given

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def test_the_trainer_leaves_a_margin_before_the_end() -> None:
    # 100 hours with ten minutes of margin are 5,990 minutes.
    assert exit_minutes(NOON + timedelta(hours=100), NOON, 600) == 5990
    assert exit_minutes(NOON + timedelta(seconds=90), NOON, 15) == 1.25


def test_a_job_already_inside_the_margin_leaves_at_once_instead_of_never() -> None:
    assert exit_minutes(NOON + timedelta(seconds=5), NOON, 600) == pytest.approx(0.01)


def test_no_limit_is_no_exit_duration() -> None:
    assert exit_minutes(None, NOON, 600) is None
    assert exit_duration_arguments(Options({}), None) == []


@pytest.mark.parametrize(
    ("arguments", "minutes"),
    [
        (["--lr", "1"], "90.000"),
        (["--exit-duration-in-mins", "30"], "30.000"),
        (["--exit-duration-in-mins=30"], "30.000"),
        (["--exit_duration_in_mins", "30"], "30.000"),
        (["--exit-dur", "30"], "30.000"),  # as the trainer takes it
        (["--exit-duration-in-mins", "30", "--exit-duration-in-mins", "120"], "90.000"),
        (["--exit-duration-in-mins", "0"], "90.000"),
    ],
)
def test_the_shorter_of_the_limits_and_the_asked_for_duration_comes_last(arguments: list[str], minutes: str) -> None:
    asked = Options(given(arguments))
    assert exit_duration_arguments(asked, 90) == ["--exit-duration-in-mins", minutes]
    # A job without a limit leaves when it was asked to.
    alone = ["--exit-duration-in-mins", f"{asked.exit_duration_in_mins:.3f}"] if asked.exit_duration_in_mins else []
    assert exit_duration_arguments(asked, None) == alone
