"""Too few healthy nodes to go on."""

from __future__ import annotations

from opsctl.runs.schema import WatchTable
from opsctl.slurm.types import Job
from opsctl.watch.detector import Settings, run_detectors
from opsctl.watch.detectors import spare_nodes
from opsctl.watch.finding import Severity
from opsctl.watch.seen import PartitionNodes
from opsctl.watch.snapshot import Part, Snapshot
from tests.unit.watch.jobs import NOW, RUNNING, WAITING_FOR_TASK


def found(healthy: int | None, job: Job = WAITING_FOR_TASK, spare: int = 0) -> list[tuple[Severity, str]]:
    """Of a run of 4 nodes in a partition of 52."""
    partition = None if healthy is None else PartitionNodes("gpu_p5", 52, healthy, "n7 is down: power")
    snapshot = Snapshot(NOW, (job,), was_submitted=True, partition=partition)
    settings = Settings("demo", "us", nodes=4, watch=WatchTable(spare_nodes=spare))
    return [(one.severity, one.text) for one in run_detectors([spare_nodes.DETECTOR], snapshot, settings)]


def test_too_few_to_start_is_critical_and_a_warning_beside_a_task_that_runs() -> None:
    words = "3 of 52 nodes of gpu_p5 are healthy, and the run needs 4"
    assert found(3) == [(Severity.CRITICAL, words)] and found(3, RUNNING) == [(Severity.WARNING, words)]


def test_who_wants_nodes_to_spare_is_told_before() -> None:
    words = "5 of 52 nodes of gpu_p5 are healthy, and the run needs 4 with 2 to spare"
    assert found(5, spare=2) == [(Severity.WARNING, words)]
    assert found(6, spare=2) == found(4) == []


def test_where_slurm_does_not_tell_nobody_knows() -> None:
    silent = Snapshot(NOW, (RUNNING,), was_submitted=True, problems=((Part.PARTITION, "sinfo: no answer within 8 s"),))
    (finding,) = run_detectors([spare_nodes.DETECTOR], silent, Settings("demo", "us", nodes=4))
    assert finding.severity is Severity.UNKNOWN and "sinfo: no answer" in finding.text
    assert found(None) == []  # which partition that is cannot be told, now and at every look
