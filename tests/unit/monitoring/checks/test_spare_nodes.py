"""Too few healthy nodes to go on."""

from __future__ import annotations

from opsctl.monitoring.check import Settings, run_detectors
from opsctl.monitoring.checks.nodes import spare_nodes
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Part, PartitionNodes, Snapshot
from opsctl.run.config.schema import WatchTable
from opsctl.slurm.types import Job
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING, WAITING_FOR_TASK


def found(healthy: int | None, job: Job = WAITING_FOR_TASK, spare: int = 0) -> list[tuple[Severity, str]]:
    """Of a run of 4 nodes in a partition of 52."""
    partition = None if healthy is None else PartitionNodes("gpu_p5", 52, healthy, "n7 is down: power")
    snapshot = Snapshot(NOW, (job,), was_submitted=True, partition=partition)
    settings = Settings("demo", "us", nodes=4, watch=WatchTable(spare_nodes=spare))
    return [(one.severity, one.text) for one in run_detectors([spare_nodes], snapshot, settings)]


def test_too_few_healthy_nodes_are_critical_unless_a_task_runs() -> None:
    ((waiting, text),), ((running, same),) = found(3), found(3, RUNNING)
    assert (waiting, running) == (Severity.CRITICAL, Severity.WARNING)
    assert missing(text, "3 of 52", "gpu_p5", "4") == [] and same == text


def test_too_few_spare_nodes_are_a_warning() -> None:
    ((severity, text),) = found(5, spare=2)
    assert severity is Severity.WARNING and missing(text, "5 of 52", "4", "2 to spare") == []
    assert found(6, spare=2) == found(4) == []


def test_where_slurm_does_not_tell_nobody_knows() -> None:
    silent = Snapshot(NOW, (RUNNING,), was_submitted=True, problems=((Part.PARTITION, "sinfo: no answer within 8 s"),))
    (finding,) = run_detectors([spare_nodes], silent, Settings("demo", "us", nodes=4))
    assert finding.severity is Severity.UNKNOWN and "sinfo: no answer" in finding.text
    assert found(None) == []  # which partition that is cannot be told, now and at every look
