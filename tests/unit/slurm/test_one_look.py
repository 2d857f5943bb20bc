"""One question to Slurm for many runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest

from opsctl.errors import SlurmUnreachable
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.one_look import OneLook
from opsctl.slurm.types import Job
from tests.unit.watch.jobs import RUNNING


class Counted:
    """A Slurm that counts what it is asked, or does not answer."""

    def __init__(self, answers: bool = True) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        self.asked.append("queue" if users is None and job_ids is None else "some")
        if not self.answers:
            raise SlurmUnreachable("no answer")
        return [RUNNING]

    def hides_others_jobs(self) -> bool:
        self.asked.append("hides")
        return False


def looked(slurm: Counted) -> OneLook:
    return OneLook(cast(SlurmClient, slurm))


def test_the_queue_is_asked_for_once_and_its_parts_each_time() -> None:
    slurm = Counted()
    look = looked(slurm)
    assert [look.jobs(), look.jobs(), look.jobs(job_ids=[13]), look.jobs()] == [[RUNNING]] * 4
    assert not look.hides_others_jobs() and not look.hides_others_jobs()
    assert slurm.asked == ["queue", "some", "hides"]


def test_a_slurm_that_does_not_answer_is_waited_for_once() -> None:
    slurm = Counted(answers=False)
    look = looked(slurm)
    for _ in range(3):
        with pytest.raises(SlurmUnreachable, match="no answer"):
            look.jobs()
    assert slurm.asked == ["queue"]


def test_nothing_is_changed_on_the_ground_of_a_shared_look() -> None:
    look = looked(Counted())
    with pytest.raises(NotImplementedError):
        look.submit("")
    with pytest.raises(NotImplementedError):
        look.cancel([1])
