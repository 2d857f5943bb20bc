"""Test the findings about the nodes of a running job that are out of service."""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.nodes import nodes
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.attempts.events import Attempt
from opsctl.slurm.nodes import Node
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING, WAITING_FOR_TASK
from trainer.formats.attempt.attempt_records import Failure

SETTINGS = Settings("tr11-176B-ml", "Eng WG")
DRAINED = Node("node2", "draining", "bad GPU 3")


def test_a_drained_node_of_the_running_job_is_a_warning_with_its_reason() -> None:
    seen = Snapshot(NOW, (RUNNING,), nodes=(Node("node1", "allocated", ""), DRAINED, Node("node3", "down*", "")))
    found = nodes.find(seen, SETTINGS)
    assert [(one.severity, one.key) for one in found] == [
        (Severity.WARNING, "nodes:node2"),
        (Severity.WARNING, "nodes:node3"),
    ]
    assert missing(found[0].text, "node2", "draining", "bad GPU 3") == []
    assert missing(found[1].text, "node3", "down*") == []


def test_of_many_bad_nodes_some_are_named_and_the_rest_counted() -> None:
    many = tuple(Node(f"n{number}", "drained", "power") for number in range(10))
    found = nodes.find(Snapshot(NOW, (RUNNING,), nodes=many), SETTINGS)
    assert len(found) == 4 and missing(found[-1].text, "7 more", "sinfo -R") == []


def test_nothing_is_said_without_a_running_job() -> None:
    assert nodes.find(Snapshot(NOW, (WAITING_FOR_TASK,), nodes=(DRAINED,)), SETTINGS) == []


def attempt(number: int, failed_on: str = "", lost: str = "", days_ago: float = 0.5) -> Attempt:
    """One on the nodes node1 to node4 that failed."""
    return Attempt(
        number=number,
        id=str(number),
        job_id=number,
        nodes=("node1", "node2", "node3", "node4"),
        closed_at=NOW - timedelta(days=days_ago),
        reason="node-failure" if lost else "failed",
        lost_nodes=(lost,) if lost else (),
        first_failure=Failure(rank=9, node=failed_on) if failed_on else None,
    )


def suspects(*attempts: Attempt) -> list[str]:
    seen = Snapshot(NOW, (RUNNING,), nodes=(Node("node1", "mixed", ""), Node("node2", "mixed", "")), attempts=attempts)
    return [one.text for one in nodes.find(seen, SETTINGS)]


def test_a_node_on_which_the_last_attempts_failed_is_suspect() -> None:
    """tr1-13B got the node with the ECC error a second time, and crashed again."""
    (failed,) = suspects(attempt(1, "node2"), attempt(2, "node2"))
    assert missing(failed, "node2", "2 of the last 2") == []
    (lost,) = suspects(attempt(7, lost="node2"))
    assert missing(lost, "node2", "Slurm", "attempt 7") == []


def test_a_suspect_comes_with_the_commands_that_test_and_exclude_it() -> None:
    seen = Snapshot(
        NOW, (RUNNING,), nodes=(Node("node2", "mixed", ""),), attempts=(attempt(1, "node2"), attempt(2, "node2"))
    )
    (found,) = nodes.find(seen, SETTINGS)
    assert missing(found.todo, "opsctl probe --nodes 1 --nodelist node2", "opsctl exclude add node2 --why") == []


def test_one_failure_an_old_one_another_node_and_the_programs_own_are_no_suspicion() -> None:
    assert suspects(attempt(1, "node2"), attempt(2, "node3")) == []
    assert suspects(attempt(1, "node2", days_ago=9), attempt(2, "node2")) == []
    assert suspects(attempt(1, lost="node3")) == []
    assert suspects(attempt(1, "node1"), attempt(2, "node1")) == []
