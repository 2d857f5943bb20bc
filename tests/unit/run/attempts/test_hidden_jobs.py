"""Jobs that others may have in the queue if only the caller's jobs are visible."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

import pytest

from opsctl.core.account import account_name
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.hidden_jobs import Unseen, describe, may_be_queued, unseen
from opsctl.run.state.chains import Chain
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.types import Job
from tests.unit.run.attempts.test_close_lost import job

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BOBS = Chain(chain=12, submitted_at=NOON, user="bob", array="1-2%1", after=("7",))


def attempt(number: int, task: str, array: int = 12, reason: str | None = "failed", user: str = "bob") -> Attempt:
    at = BOBS.submitted_at if array == 12 else None
    return Attempt(
        number=number,
        id=f"id-{number}",
        job_id=100 + number,
        array_job_id=array,
        array_task=task,
        user=user,
        reason=reason,
        chain_submitted_at=at,
    )


class Hiding:
    """A Slurm that hides others' jobs, or not; counts the questions."""

    def __init__(self, hides: bool = True) -> None:
        self.hides, self.questions = hides, 0

    def hides_others_jobs(self) -> bool:
        self.questions += 1
        return self.hides


def ask(slurm: Hiding, chains: Sequence[Chain] = (BOBS,), queue: Sequence[Job] = ()) -> tuple[Unseen, ...]:
    return unseen(chains, lambda: (), queue, cast(SlurmClient, slurm))


def test_others_chains_that_are_not_known_to_have_ended_are_unseen_where_jobs_are_hidden() -> None:
    assert ask(Hiding()) == (Unseen(12, "bob", ("7",)),)
    assert ask(Hiding(hides=False)) == ()


def test_slurm_is_asked_only_when_others_may_be_there_and_none_of_theirs_is_shown() -> None:
    mine = Chain(chain=13, submitted_at=NOON, user=account_name(), array="1-2%1")
    for chains, queue, questions in (
        ([mine], [], 0),
        ([mine, BOBS], [], 1),
        ([mine, BOBS], [job(13, user=account_name())], 1),
        ([mine, BOBS], [job(99, user="carol")], 0),
    ):
        slurm = Hiding()
        assert bool(ask(slurm, chains, queue)) is bool(questions)
        assert slurm.questions == questions


@pytest.mark.parametrize(
    ("attempts", "may"),
    [
        ([], True),
        ([attempt(1, "1")], True),
        ([attempt(1, "1"), attempt(2, "2", reason=None)], True),
        ([attempt(1, "1"), attempt(2, "2", reason="requeued")], True),
        ([attempt(1, "1"), attempt(2, "2")], False),
        ([attempt(1, "1"), attempt(2, "2", reason="requeued"), attempt(3, "2")], False),
        ([attempt(1, "1", reason="brake")], False),
        ([attempt(1, "1", array=13, user="ann")], False),
    ],
)
def test_a_chain_has_ended_with_its_last_task_its_brake_or_the_start_of_what_waited_for_it(
    attempts: list[Attempt], may: bool
) -> None:
    behind = Chain(chain=13, submitted_at=NOON, user="ann", array="1%1", after=("12",))
    found = [one.array_job_id for one in may_be_queued([BOBS, behind], attempts)]
    assert (12 in found) is may


def test_an_earlier_clusters_attempts_under_the_same_id_end_nothing() -> None:
    later = Chain(chain=12, submitted_at=datetime(2026, 11, 22, tzinfo=UTC), user="bob", array="1-2%1")
    assert may_be_queued([later], [attempt(1, "1"), attempt(2, "2")])


def test_an_open_attempt_counts_also_without_a_record_of_its_chain() -> None:
    (found,) = may_be_queued([], [attempt(1, "1", array=30, reason=None)])
    assert (found.array_job_id, found.user, found.runs_since_attempt) == (30, "bob", 1)
    first, _, second = describe([found, Unseen(0, "")]).partition(", ")
    assert "30" in first and "bob" in first and second
