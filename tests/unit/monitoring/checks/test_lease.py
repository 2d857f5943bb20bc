"""A writer that the queue does not show, and one whose heartbeat has stopped."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.records import lease
from opsctl.monitoring.checks.training import training
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.state.lease import Seen
from opsctl.slurm.types import Job
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING, WAITING_FOR_TASK
from trainer.formats.attempt.lease import Holder

SETTINGS = Settings("demo", "the team")


def snapshot(jobs: tuple[Job, ...], job_id: int = 99, age_s: float | None = 5, **known: Any) -> Snapshot:
    holder = Holder(4, "a", job_id, "ben", "x7")
    return Snapshot(NOW, jobs, was_submitted=True, lease=Seen(holder, age_s), **known)


@pytest.mark.parametrize(
    ("seen", "severity", "subject", "facts"),
    [
        (snapshot((RUNNING,)), Severity.CRITICAL, "two", ("12_1", "job 99", "ben", "x7", "lease 4")),
        (snapshot((RUNNING,), age_s=None), Severity.CRITICAL, "two", ("12_1", "job 99")),
        (snapshot(()), Severity.WARNING, "unseen", ("job 99", "ben", "x7")),
        (snapshot((WAITING_FOR_TASK,)), Severity.WARNING, "unseen", ("job 99", "ben", "x7")),
        (snapshot((RUNNING,), 13, 200), Severity.WARNING, "silent", ("job 13", "3 min")),
    ],
)
def test_a_wrong_writer_is_found(seen: Snapshot, severity: Severity, subject: str, facts: tuple[str, ...]) -> None:
    (finding,) = lease.find(seen, SETTINGS)
    assert (finding.severity, finding.key, missing(finding.text, *facts)) == (severity, f"lease:{subject}", [])


@pytest.mark.parametrize(
    "seen",
    [
        Snapshot(NOW, (RUNNING,)),
        snapshot((RUNNING,), 13),
        snapshot((), age_s=61),  # a job that was killed is not said to train
        snapshot((), blind="no answer"),
    ],
)
def test_a_writer_that_is_shown_or_gone_is_no_finding(seen: Snapshot) -> None:
    assert lease.find(seen, SETTINGS) == []


def test_a_training_on_another_cluster_is_not_reported_as_absent() -> None:
    (finding,) = training.find(snapshot(()), SETTINGS)
    assert (finding.severity, finding.alert) == (Severity.UNKNOWN, None)
    assert missing(finding.text, "job 99", "ben", "x7") == []
    (finding,) = training.find(snapshot((), age_s=200), SETTINGS)
    assert finding.severity is Severity.CRITICAL
