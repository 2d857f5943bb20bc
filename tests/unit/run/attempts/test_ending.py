"""The reasons why an attempt ended, and their sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt, append_closed, append_opened, read
from opsctl.run.attempts.outcome import StepEnd, read_evidence, reason_of
from opsctl.run.config.paths import RunPaths
from opsctl.slurm.states import End
from trainer.formats.attempt.attempt_records import EXIT_REPORT
from trainer.formats.logs.guard_lines import Reason


@pytest.mark.parametrize("reason", [*Reason, *End])
def test_what_the_trainer_and_slurm_say_is_an_ending(reason: Reason | End) -> None:
    assert Ending(reason).value == reason.value


@pytest.mark.parametrize("ending", Ending)
def test_an_ending_is_a_plain_word_on_record(tmp_path: Path, ending: Ending) -> None:
    paths = RunPaths(tmp_path)
    attempt = Attempt(number=1, id="7-a", job_id=7, reason=ending)
    append_opened(paths, attempt)
    append_closed(paths, attempt)
    assert json.loads(paths.attempts.read_text().splitlines()[1])["reason"] == ending.value
    (found,) = read(paths)
    assert found.reason == ending


def test_a_word_of_another_release_is_shown_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / EXIT_REPORT).write_text('{"reason": "too-hot", "iteration": 5}')
    assert reason_of(StepEnd(0), read_evidence(tmp_path, tmp_path)) == "too-hot"
