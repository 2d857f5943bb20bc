"""What is said of the nodes of a running job that are out of service."""

from __future__ import annotations

from opsctl.slurm.nodes import Node
from opsctl.watch.detector import Settings
from opsctl.watch.detectors import nodes
from opsctl.watch.finding import Severity
from opsctl.watch.snapshot import Snapshot
from tests.unit.watch.jobs import NOW, RUNNING, WAITING_FOR_TASK

SETTINGS = Settings("tr11-176B-ml", "Eng WG")
DRAINED = Node("node2", "draining", "bad GPU 3")


def test_a_drained_node_of_the_running_job_is_a_warning_with_its_reason() -> None:
    seen = Snapshot(NOW, (RUNNING,), nodes=(Node("node1", "allocated", ""), DRAINED, Node("node3", "down*", "")))
    found = nodes.find(seen, SETTINGS)
    assert [(one.severity, one.text) for one in found] == [
        (Severity.WARNING, "node node2 of the running job is draining: bad GPU 3"),
        (Severity.WARNING, "node node3 of the running job is down*"),
    ]


def test_of_many_some_are_named_and_the_rest_counted() -> None:
    many = tuple(Node(f"n{number}", "drained", "power") for number in range(10))
    found = nodes.find(Snapshot(NOW, (RUNNING,), nodes=many), SETTINGS)
    assert len(found) == 4 and found[-1].text.startswith("and 7 more nodes of the running job")


def test_nothing_is_said_without_a_running_job() -> None:
    assert nodes.find(Snapshot(NOW, (WAITING_FOR_TASK,), nodes=(DRAINED,)), SETTINGS) == []
