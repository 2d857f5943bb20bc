"""The exit duration that Slurm's limit leaves."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pytest

from opsctl.core.timestamps import iso, now
from opsctl.jobs.runner.limit import (
    Limit,
    exit_duration_arguments,
    exit_minutes,
    is_limits_warning,
    why_signalled,
)
from opsctl.jobs.signals import Signals
from trainer.recipe.options import Options, given

USR1, TERM = signal.SIGUSR1, signal.SIGTERM
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


def limit(minutes: float | None) -> Limit:
    """One that many minutes after noon, of a job of two hours."""
    return Limit(None, None) if minutes is None else Limit(NOON + timedelta(minutes=minutes), 7200)


def got(*numbers: int) -> Signals:
    signals = Signals()
    for number in numbers:
        signals.note(number, None)
    return signals


def in_minutes(minutes: float | None) -> Limit:
    """One that many minutes from now, of a job of two hours."""
    return Limit(None, None) if minutes is None else Limit(now() + timedelta(minutes=minutes), 7200)


def test_slurms_warning_before_the_limit_is_called_the_limit_and_any_other_signal_by_its_name() -> None:
    assert is_limits_warning(got(USR1), in_minutes(10), margin_s=600)
    assert is_limits_warning(got(USR1, TERM), in_minutes(11), margin_s=600)  # Slurm warns up to a minute early
    assert not is_limits_warning(got(USR1), in_minutes(30), margin_s=600)  # a person's, or preemption's
    assert not is_limits_warning(got(TERM, USR1), in_minutes(10), margin_s=600)
    assert not is_limits_warning(got(USR1), in_minutes(None), margin_s=600)
    near = in_minutes(10)
    words = why_signalled(got(USR1, TERM), near, 600)
    assert "2:00:00" in words and str(iso(near.ends_at)) in words and words.endswith(", SIGUSR1, SIGTERM")
    assert why_signalled(got(TERM), near, 600) == "the job got SIGTERM"


def test_a_signal_long_before_the_limit_stays_a_persons_until_the_end() -> None:
    signals = got(USR1)
    signals._at[USR1] -= 3600
    assert not is_limits_warning(signals, in_minutes(1), margin_s=600)
