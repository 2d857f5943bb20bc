"""Test the finding when it is unknown from which checkpoint a training resumes."""

from __future__ import annotations

from pathlib import Path

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.checkpoints import checkpoints
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.checkpoints.inventory import Checkpoint
from tests.unit.monitoring.jobs import NOW, RUNNING, WAITING_FOR_TASK

SETTINGS = Settings("tr11-176B-ml", "Eng WG")
PROBLEM = "latest is missing, and /c has 159 checkpoints; opsctl checkpoints repoint"


def test_it_is_critical_while_nothing_trains_and_a_warning_beside_a_training_that_will_save() -> None:
    for jobs, severity in (((WAITING_FOR_TASK,), Severity.CRITICAL), ((RUNNING,), Severity.WARNING)):
        (found,) = checkpoints.find(Snapshot(NOW, jobs, checkpoint_problem=PROBLEM), SETTINGS)
        assert (found.severity, found.text) == (severity, PROBLEM)


def test_nothing_is_said_of_checkpoints_in_order() -> None:
    assert checkpoints.find(Snapshot(NOW, (RUNNING,)), SETTINGS) == []


def test_a_latest_checkpoint_that_is_not_finite_is_critical_while_nothing_trains() -> None:
    latest = Checkpoint(Path("/c/global_step60"), 60, 1, not_finite="rank 3 holds weights that are not finite")
    (found,) = checkpoints.find(Snapshot(NOW, (WAITING_FOR_TASK,), checkpoint=latest), SETTINGS)
    assert found.severity is Severity.CRITICAL and latest.not_finite in found.text  # type: ignore[operator]
