"""Test the finding about a newest revision that is damaged."""

from __future__ import annotations

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.records import revision
from opsctl.monitoring.checks.training import training
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot
from tests.unit.monitoring.jobs import NOW, RUNNING

SETTINGS = Settings("tr11-176B-ml", "Eng WG")
PROBLEM = "revision 0002-abc is damaged: run.json is missing; opsctl revise publishes a new revision"


def test_a_damaged_newest_revision_is_critical() -> None:
    (found,) = revision.find(Snapshot(NOW, (RUNNING,), revision_problem=PROBLEM), SETTINGS)
    assert found.severity is Severity.CRITICAL and PROBLEM in found.text
    assert revision.find(Snapshot(NOW, (RUNNING,)), SETTINGS) == []


def test_a_training_that_may_be_finished_is_not_missed() -> None:
    for problem in ({"revision_problem": PROBLEM}, {"checkpoint_problem": PROBLEM}):
        (found,) = training.find(Snapshot(NOW, was_submitted=True, **problem), SETTINGS)  # type: ignore[arg-type]
        assert found.severity is Severity.UNKNOWN and PROBLEM in found.text
