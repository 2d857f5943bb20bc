from __future__ import annotations

import signal

import pytest

from opsctl.slurm.states import ENDS, End
from opsctl.slurm.types import JobEnd, exit_code_of, job_outcome


def an_end(state: str, exit_code: int = 0, number: int = 0) -> JobEnd:
    return JobEnd(7, state, exit_code, number, None, None, "")


@pytest.mark.parametrize("state", sorted(ENDS))
def test_each_end_that_slurm_brought_about_has_words_and_is_no_success(state: str) -> None:
    word = job_outcome(an_end(state))
    assert word.end is not None and word.words and not word.is_success


def test_the_same_end_by_another_name_is_said_in_the_same_words() -> None:
    assert len({job_outcome(an_end(state)).words for state in ENDS}) == len(End)


@pytest.mark.parametrize(
    ("end", "is_success", "code"),
    [
        (an_end("COMPLETED"), True, 0),
        (an_end("COMPLETED", 0, signal.SIGKILL), False, 137),
        (an_end("FAILED", 3), False, 3),
        (an_end("FAILED", 0, signal.SIGUSR1), False, 138),
        (an_end("A_NEW_STATE"), False, 0),
    ],
)
def test_of_a_script_that_ended_by_itself_its_exit_code_decides(end: JobEnd, is_success: bool, code: int) -> None:
    word = job_outcome(end)
    assert (word.end, word.is_success, word.exit_code) == (None, is_success, code)
    assert exit_code_of(end) == code
