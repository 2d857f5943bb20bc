"""The end of another job's lease according to attempts and Slurm. Heartbeats are tested elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl.run.attempts.close_lost import over_by_slurm, over_on_record
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt, append_opened, read
from opsctl.run.config.paths import RunPaths
from opsctl.slurm.types import Job
from tests.unit.run.attempts.test_close_lost import NOON, end, job, slurm
from trainer.formats.attempt.lease import Holder

HOLDER = Holder(3, "a", 7, "ann", "x9")


def attempt(reason: str | None) -> Attempt:
    return Attempt(number=1, id="a", job_id=7, reason=reason)


@pytest.mark.parametrize(
    ("attempts", "requeued_id", "over"),
    [
        ([], None, False),
        ([attempt(None)], None, False),
        ([attempt(Ending.UNKNOWN)], None, False),  # perhaps another cluster's job, perhaps hidden
        ([attempt(Ending.NODE_FAILURE)], None, True),
        ([attempt("from-another-release")], None, True),
        ([], 7, True),  # its own earlier life
        ([], 8, False),
    ],
)
def test_what_is_on_record_ends_a_holding_only_where_it_is_known(
    attempts: list[Attempt], requeued_id: int | None, over: bool
) -> None:
    assert bool(over_on_record(HOLDER, attempts, requeued_id)) is over


@pytest.mark.parametrize(
    ("queue", "ends", "asked", "over"),
    [
        ([job(7)], [], "", False),
        ([], [end(7, "NODE_FAIL")], "", True),
        ([], [end(7, "COMPLETED")], "here", True),
        ([], [], "", False),  # Slurm does not know it
        ([], [end(7, "NODE_FAIL")], "elsewhere", False),  # this one's 7 is another job
        ([], [end(7, "NODE_FAIL", started=-60, ended=-30)], "", False),
        ([job(7, "PENDING", started_at=None)], [], "", True),  # requeued
    ],
)
def test_slurms_word_about_the_holders_job_counts_and_is_not_written_down(
    tmp_path: Path, queue: list[Job], ends: list[Any], asked: str, over: bool
) -> None:
    paths = RunPaths(tmp_path)
    append_opened(paths, Attempt(number=1, id="a", job_id=7, opened_at=NOON, cluster="here"))
    assert over_by_slurm(HOLDER, paths, slurm(queue, ends), queue, asked) is over
    assert read(paths)[0].is_open
