"""How often a Slurm is asked by somebody who looks for hours."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from opsctl.core.errors import SlurmError, SlurmUnreachable
from opsctl.slurm.nodes import Node
from opsctl.slurm.rate_limited import RarelyAsked
from opsctl.slurm.types import Job
from tests.unit.monitoring.jobs import RUNNING, WAITING_FOR_TASK


class Slurm:
    """A Slurm with a clock, which notes when it is asked."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.asked: list[tuple[float, str]] = []
        self.error: SlurmError | None = None
        self.queue = [RUNNING, WAITING_FOR_TASK]
        self.queue_age_s = 0.0

    def _note(self, what: str) -> None:
        self.asked.append((self.now_s, what))
        if self.error is not None:
            raise self.error

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        assert users is None and job_ids is None
        self._note("jobs")
        return self.queue

    def nodes(self, folded: str | None = None) -> list[Node]:
        assert folded is None
        self._note("nodes")
        return [Node("x1", "allocated", ""), Node("x2", "idle", "")]

    def hides_others_jobs(self) -> bool:
        self._note("hides")
        return False

    def configuration(self) -> dict[str, str]:
        self._note("configuration")
        return {}

    def nodes_of(self, folded: str) -> list[str]:
        return folded.split(",")


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def rarely(slurm: Slurm) -> RarelyAsked:
    return RarelyAsked(lambda: slurm, lambda: slurm.now_s)


def most_in_a_minute(asked: list[tuple[float, str]]) -> int:
    return max(sum(0 <= at - begin <= 60 for at, _ in asked) for begin, _ in asked)


@pytest.mark.parametrize("error", [None, SlurmUnreachable("no answer"), SlurmError("refused")], ids=str)
def test_in_no_minute_of_hours_of_looking_is_it_asked_more_than_twice(
    slurm: Slurm, rarely: RarelyAsked, error: SlurmError | None
) -> None:
    slurm.error = error
    for second in range(2 * 3600):
        slurm.now_s += 1
        if second % 7 == 0:
            rarely.expect_change()
        for ask in (rarely.jobs, rarely.hides_others_jobs, rarely.nodes, rarely.configuration):
            try:
                ask()
            except SlurmError:
                continue
    assert most_in_a_minute(slurm.asked) == 2
    assert {what for _, what in slurm.asked} >= {"jobs", "hides"}


def test_the_queue_is_asked_for_once_a_minute_and_the_nodes_every_three(slurm: Slurm, rarely: RarelyAsked) -> None:
    for _ in range(600):
        rarely.jobs()
        assert [node.name for node in rarely.nodes("x2")] == ["x2"]
        slurm.now_s += 1
    asked = [what for _, what in slurm.asked]
    assert (asked.count("jobs"), asked.count("nodes")) == (10, 4)
    assert 0.0 < rarely.queue_age_s <= 61.0


def test_an_answer_that_others_had_before_is_as_old_as_they_say(slurm: Slurm, rarely: RarelyAsked) -> None:
    slurm.queue_age_s = 50.0
    rarely.jobs()
    assert rarely.queue_age_s == 50.0
    slurm.now_s += 11
    rarely.jobs()
    assert len(slurm.asked) == 2


def test_narrowed_questions_are_answered_from_what_is_known(slurm: Slurm, rarely: RarelyAsked) -> None:
    assert rarely.jobs(job_ids=[RUNNING.job_id]) == [RUNNING]
    assert rarely.jobs(users=["nobody"]) == []
    assert len(slurm.asked) == 1


def test_after_a_change_it_asks_anew_as_soon_as_it_may(slurm: Slurm, rarely: RarelyAsked) -> None:
    rarely.jobs()
    rarely.expect_change()
    slurm.queue = []
    assert rarely.jobs() == []
    rarely.expect_change()
    slurm.queue = [RUNNING]
    assert rarely.jobs() == []  # the third in this minute
    slurm.now_s += 61
    assert rarely.jobs() == [RUNNING]


def test_what_it_was_never_told_and_may_not_ask_for_is_out_of_reach(slurm: Slurm, rarely: RarelyAsked) -> None:
    rarely.jobs()
    rarely.hides_others_jobs()
    with pytest.raises(SlurmUnreachable, match="2 times a minute"):
        rarely.nodes()
    slurm.now_s += 61
    assert len(rarely.nodes()) == 2
