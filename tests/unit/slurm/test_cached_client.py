"""One look asks one Slurm each question once."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.core.errors import SlurmUnreachable
from opsctl.slurm.cached_client import AskedOnce
from opsctl.slurm.nodelists import expand_nodes
from opsctl.slurm.nodes import Node


class Slurm:
    """Counts its questions, and answers none while it is out of reach."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_away = False

    def jobs(self, users: Any = None, job_ids: Any = None) -> list[Any]:
        self.asked.append(f"jobs {users}")
        if self.is_away:
            raise SlurmUnreachable("no answer")
        return []

    def nodes(self, folded: str | None = None) -> list[Node]:
        self.asked.append(f"nodes {folded}")
        return [Node("node1", "idle", ""), Node("node2", "down", "")]

    def nodes_of(self, folded: str) -> list[str]:
        return expand_nodes(folded)

    def hides_others_jobs(self) -> bool:
        self.asked.append("hides")
        return True


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


def test_each_question_is_asked_once_and_of_nodes_the_wanted_ones_are_told(slurm: Slurm) -> None:
    once = AskedOnce(lambda: slurm)  # type: ignore[arg-type, return-value]
    for _ in range(3):
        assert once.jobs() == [] and once.hides_others_jobs()
        assert [node.name for node in once.nodes("node[2-4]")] == ["node2"] and len(once.nodes()) == 2
    assert slurm.asked == ["jobs None", "hides", "nodes None"]
    once.jobs(users=["ana"])
    assert slurm.asked[-1] == "jobs ['ana']"


def test_an_outage_is_remembered_for_the_next_questions(slurm: Slurm) -> None:
    slurm.is_away = True
    once = AskedOnce(lambda: slurm)  # type: ignore[arg-type, return-value]
    for _ in range(3):
        with pytest.raises(SlurmUnreachable, match="no answer"):
            once.jobs()
    assert len(slurm.asked) == 1
