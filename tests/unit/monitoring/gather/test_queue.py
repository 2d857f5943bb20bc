"""Test what is gathered from Slurm's nodes."""

from __future__ import annotations

from pathlib import Path

from opsctl.core.errors import SlurmError
from opsctl.monitoring.runner import gather
from opsctl.monitoring.snapshot import Part, PartitionNodes
from opsctl.run.state.run_view import view
from opsctl.slurm.nodes import Node, expand_nodes
from tests.tiny_run import write_run
from tests.unit.monitoring.run_folder import StandIn, troubled_run

NODES = [
    Node("node1", "allocated", "", ("gpu*",)),
    Node("node2", "draining", "bad GPU 3", ("gpu*", "all")),
    Node("node3", "idle", "", ("gpu*", "all")),
    Node("node4", "down*", "", ("gpu*",)),
    Node("login1", "idle", "", ("all",)),
]


class WithNodes(StandIn):
    """Answers for a cluster of NODES."""

    def nodes(self, folded: str | None = None) -> list[Node]:
        self.questions += 1
        return [node for node in NODES if folded is None or node.name in expand_nodes(folded)]


class WithoutNodes(StandIn):
    """Tells of jobs, and no one of nodes."""

    def nodes(self, folded: str | None = None) -> list[Node]:
        raise SlurmError("Slurm refused to show nodes: Access denied")


def test_the_partitions_nodes_come_in_the_same_question_as_the_running_jobs(tmp_path: Path) -> None:
    run, job = troubled_run(tmp_path)
    slurm = WithNodes([job])
    seen = gather(run, slurm, Part.QUEUE | Part.NODES | Part.PARTITION)  # type: ignore[arg-type]
    assert slurm.questions == 2  # the queue, and all nodes
    assert [node.name for node in seen.nodes] == ["node1", "node2", "node3", "node4"]  # node[1-4]
    assert seen.partition == PartitionNodes("gpu", 4, 2, "node2 is draining: bad GPU 3")


def test_a_run_gets_the_nodes_of_its_partition_that_it_does_not_exclude(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path, slurm='partition = "all"\nexclude = "node[2-3]"')))
    seen = gather(run, WithNodes([]), Part.PARTITION)  # type: ignore[arg-type]
    assert seen.partition == PartitionNodes("all", 1, 1)


def test_a_partition_that_slurm_does_not_have_has_no_count(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path, slurm='partition = "gone"')))
    assert gather(run, WithNodes([]), Part.PARTITION).partition is None  # type: ignore[arg-type]


def test_a_slurm_that_keeps_its_nodes_to_itself_is_blind_there_and_nowhere_else(tmp_path: Path) -> None:
    run, job = troubled_run(tmp_path)
    seen = gather(run, WithoutNodes([job]), Part.QUEUE | Part.NODES | Part.PARTITION)  # type: ignore[arg-type]
    assert seen.jobs == (job,) and seen.blind is None and seen.problem_of(Part.QUEUE) == ""
    assert "Access denied" in seen.problem_of(Part.NODES) and "Access denied" in seen.problem_of(Part.PARTITION)
    assert (seen.nodes, seen.partition) == ((), None)


def test_a_slurm_that_does_not_answer_is_not_asked_a_second_time(tmp_path: Path) -> None:
    run, _ = troubled_run(tmp_path)
    slurm = WithNodes(None)
    seen = gather(run, slurm, Part.QUEUE | Part.NODES | Part.PARTITION)  # type: ignore[arg-type]
    assert slurm.questions == 1 and seen.problem_of(Part.PARTITION)
