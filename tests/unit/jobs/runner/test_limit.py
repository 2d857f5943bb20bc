"""The exit duration that Slurm's limit leaves."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.core.errors import SlurmUnreachable
from opsctl.core.timestamps import iso
from opsctl.jobs.runner.limit import (
    Limit,
    LimitWatch,
    exit_duration_arguments,
    exit_minutes,
    is_limits_warning,
    limit_words,
    next_question,
)
from opsctl.jobs.signals import Signals
from trainer.formats.attempt.attempt_records import LATER_EXIT
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


def test_slurms_warning_before_the_limit_is_called_the_limit_and_any_other_signal_by_its_name() -> None:
    assert "2:00:00" in limit_words(limit(30)) and iso(NOON + timedelta(minutes=30)) in limit_words(limit(30))
    assert is_limits_warning([USR1], limit(10), NOON, margin_s=600)
    assert is_limits_warning([USR1, TERM], limit(11), NOON, margin_s=600)  # Slurm warns up to a minute early
    assert not is_limits_warning([USR1], limit(30), NOON, margin_s=600)  # a person's, or preemption's
    assert not is_limits_warning([TERM, USR1], limit(10), NOON, margin_s=600)
    assert not is_limits_warning([USR1], limit(None), NOON, margin_s=600)


def test_what_the_job_got_keeps_its_name_when_more_signals_come(tmp_path: Path) -> None:
    watch, signals = LimitWatch(limit(10), 600, lambda: None, tmp_path, None, lambda: NOON), Signals()
    signals.note(USR1, None)
    first = watch.why(signals)
    assert watch.has_warned and "2:00:00" in first and first.endswith(", SIGUSR1")
    signals.note(TERM, None)
    assert watch.why(signals) == f"{first}, SIGTERM"
    plain, sent = LimitWatch(limit(90), 600, lambda: None, tmp_path, None, lambda: NOON), Signals()
    sent.note(TERM, None)
    assert plain.why(sent).endswith("SIGTERM") and "2:00:00" not in plain.why(sent) and not plain.has_warned


def test_slurm_is_asked_three_times_before_the_trainer_leaves_and_not_at_the_last_moment() -> None:
    leaves_at = NOON + timedelta(hours=1)
    asked, at = [], NOON
    while (found := next_question(leaves_at, at)) is not None:
        asked.append((leaves_at - found).total_seconds())
        at = found
    assert asked == [300, 120, 30]


class Watched(LimitWatch):
    """A watch whose time passes only while it waits; Slurm gives one answer a question, and then none."""

    def __init__(self, folder: Path, *answers: Limit | None, has_note: bool = True) -> None:
        self.now, self.answers, self.asked = NOON, list(answers), list[float]()
        super().__init__(limit(20), 600, self.answer, folder, folder / LATER_EXIT if has_note else None, self.clock)

    def clock(self) -> datetime:
        return self.now

    def answer(self) -> Limit | None:
        self.asked.append((self.now - NOON).total_seconds() / 60)
        if not self.answers:
            raise SlurmUnreachable("no answer")
        return self.answers.pop(0)

    def _wait(self, seconds: float) -> bool:
        self.now += timedelta(seconds=seconds)
        return False

    def to_the_end(self) -> LimitWatch:
        """Watch until nothing is left to ask."""
        with self:
            self._thread.join(20)
            assert not self._thread.is_alive()
        return self


def written(folder: Path) -> datetime:
    return datetime.fromisoformat(json.loads((folder / LATER_EXIT).read_text())["at"])


def test_a_raised_limit_lets_the_trainer_go_on_until_the_margin_before_the_new_one(tmp_path: Path) -> None:
    watch = Watched(tmp_path, limit(20), limit(40))
    watch.to_the_end()
    # 5 and 2 minutes before minute 10, where it was raised; then before minute 30.
    assert watch.asked == [5, 8, 25, 28, 29.5]
    assert written(tmp_path) == NOON + timedelta(minutes=30)
    (line,) = watch.news()
    assert "2:00:00" in line and iso(NOON + timedelta(minutes=40)) in line
    assert watch.limit == limit(40) and watch.news() == []


def test_a_limit_that_comes_back_down_takes_the_longer_word_back(tmp_path: Path) -> None:
    Watched(tmp_path, limit(60), limit(35)).to_the_end()
    assert written(tmp_path) == NOON + timedelta(minutes=25)


def test_without_a_change_or_an_answer_nothing_is_written_and_the_known_limit_stands(tmp_path: Path) -> None:
    watch = Watched(tmp_path, limit(20), None)
    watch.to_the_end()
    assert watch.asked == [5, 8, 9.5] and list(tmp_path.iterdir()) == [] and watch.news() == []


def test_who_asked_the_trainer_to_leave_sooner_than_the_limit_is_not_put_off(tmp_path: Path) -> None:
    watch = Watched(tmp_path, limit(60), has_note=False)
    watch.to_the_end()
    assert list(tmp_path.iterdir()) == [] and len(watch.news()) == 1


def test_a_limit_that_was_taken_away_is_asked_for_again_before_the_word_of_it_is_over(tmp_path: Path) -> None:
    watch = Watched(tmp_path, limit(None), limit(None))
    watch.to_the_end()
    week = 7 * 24 * 60
    assert watch.asked == [5, week, *(2 * week - before for before in (5, 2, 0.5))]
    assert written(tmp_path) == NOON + timedelta(minutes=2 * week)


def test_a_note_that_cannot_be_written_is_said_and_the_trainer_leaves_as_it_would(tmp_path: Path) -> None:
    (tmp_path / LATER_EXIT / "in the way").mkdir(parents=True)
    (line,) = Watched(tmp_path, limit(60)).to_the_end().news()
    assert str(tmp_path / LATER_EXIT) in line
