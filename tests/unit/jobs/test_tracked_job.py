from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest

from opsctl.core.account import account_name
from opsctl.core.errors import SlurmError, SlurmUnasked, SlurmUnreachable
from opsctl.core.timestamps import now
from opsctl.jobs.tracked_job import ON_ITS_WAY, Absent, TrackedJob, Undecided, send, settle
from opsctl.slurm.job_match import Sent
from opsctl.slurm.types import Job
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory, a_job

WORDS = "opsctl submit=70ce"
COMMENT = "opsctl run=5eed submit=70ce"
SCRIPT = f"#SBATCH --comment='{COMMENT}'"
LOST = SlurmUnreachable("no answer")


def tracked(job_id: int = 0, user: str = "", ago: timedelta = timedelta(0), **more: Any) -> TrackedJob:
    return TrackedJob(Sent(WORDS, user or account_name()), now() - ago, job_id, **more)


class Answers(SlurmInMemory):
    """Takes a job or not, and then raises what `then` gives."""

    def submit(self, script: str) -> int:
        if self.most:
            super().submit(script)
        raise self.then

    then: SlurmError = LOST


def test_an_id_whose_answer_was_lost_is_found_by_the_words_of_the_comment() -> None:
    slurm = Answers()
    slurm.queue = [a_job(7, COMMENT, user="mallory"), a_job(8, "opsctl run=5eed submit=0ther")]
    assert send(slurm, SCRIPT, tracked()) == 101


@pytest.mark.parametrize("then", [SlurmError("refused"), SlurmUnasked("no slurm.conf")])
def test_a_refusal_is_told_from_what_may_be_on_its_way(then: SlurmError) -> None:
    slurm = Answers(most=0)
    slurm.then = then
    with pytest.raises(SlurmError) as found:
        send(slurm, SCRIPT, tracked())
    assert found.value is then


def test_what_the_queue_does_not_have_is_absent_and_without_a_queue_nothing_is_decided() -> None:
    with pytest.raises(Absent):
        send(Answers(most=0), SCRIPT, tracked())

    class Gone(Answers):
        def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
            raise LOST

    with pytest.raises(Undecided, match=r"chain.* wait$"):
        send(Gone(), SCRIPT, tracked(), "the chain", "wait")


@pytest.mark.parametrize(
    ("job", "hides", "lost"),
    [
        (lambda: tracked(), False, ""),
        (lambda: tracked(ago=ON_ITS_WAY + timedelta(seconds=1)), False, "ever had it"),
        (lambda: tracked(7), False, "its job"),
        (lambda: tracked(7, "ann", believed_until=now() + timedelta(hours=1)), True, ""),
        (lambda: tracked(7, "ann", believed_until=now() + timedelta(hours=1)), False, "its job"),
        (lambda: tracked(7, "ann", believed_until=now() - timedelta(hours=1)), True, "its job"),
    ],
)
def test_what_slurm_does_not_show_is_lost_unless_it_is_on_its_way_or_hidden(
    job: Callable[[], TrackedJob], hides: bool, lost: str
) -> None:
    answer = settle(SlurmInMemory(hides=hides), lambda: {"one": job()})["one"]
    assert (answer.job, answer.end) == (None, None)
    assert answer.lost.endswith(lost) and bool(answer.lost) == bool(lost)


def test_a_job_that_the_first_answer_did_not_show_is_found_by_its_id() -> None:
    row = a_job(7, COMMENT)

    class Late(SlurmInMemory):
        def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
            return [] if job_ids is None else [row]

    assert settle(Late(), lambda: {"one": tracked(7)})["one"].job == row


def test_the_records_are_read_after_the_queue() -> None:
    order: list[str] = []

    class Noted(SlurmInMemory):
        def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
            order.append("queue")
            return []

    def read() -> dict[str, TrackedJob]:
        order.append("records")
        return {}

    assert settle(Noted(), read) == {} and order == ["queue", "records"]
