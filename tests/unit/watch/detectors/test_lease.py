"""A writer that the queue does not show, and one whose heart has stopped."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.records.lease import Seen
from opsctl.slurm.types import Job
from opsctl.watch.detector import Settings
from opsctl.watch.detectors import lease, training
from opsctl.watch.finding import Severity
from opsctl.watch.snapshot import Snapshot
from tests.unit.watch.jobs import NOW, RUNNING, WAITING_FOR_TASK
from trainer.formats.lease import Holder

SETTINGS = Settings("demo", "the team")


def snapshot(jobs: tuple[Job, ...], job_id: int = 99, age_s: float | None = 5, **known: Any) -> Snapshot:
    holder = Holder(4, "a", job_id, "ben", "x7")
    return Snapshot(NOW, jobs, was_submitted=True, lease=Seen(holder, age_s), **known)


@pytest.mark.parametrize(
    ("seen", "severity", "words"),
    [
        (snapshot((RUNNING,)), Severity.CRITICAL, "another writer beside job 12_1: job 99 of ben on x7 (lease 4), "),
        (snapshot((RUNNING,), age_s=None), Severity.CRITICAL, "another writer beside job 12_1: "),
        (snapshot(()), Severity.WARNING, "trains this run, which the queue does not show here"),
        (snapshot((WAITING_FOR_TASK,)), Severity.WARNING, "trains this run, which the queue does not show here"),
        (snapshot((RUNNING,), 13, 200), Severity.WARNING, "stood still for 3 min"),
    ],
)
def test_what_is_wrong_with_the_writer_is_found(seen: Snapshot, severity: Severity, words: str) -> None:
    (finding,) = lease.find(seen, SETTINGS)
    assert finding.severity is severity and words in finding.text
    subjects = {"another": "two", "trains": "unseen", "stood": "silent"}
    assert finding.key == f"lease:{next(known for word, known in subjects.items() if word in words)}"


@pytest.mark.parametrize(
    "seen",
    [
        Snapshot(NOW, (RUNNING,)),
        snapshot((RUNNING,), 13),
        snapshot((), age_s=61),  # a job that was killed is not said to train
        snapshot((), blind="Slurm does not answer"),
    ],
)
def test_a_writer_that_is_shown_or_gone_is_no_finding(seen: Snapshot) -> None:
    assert lease.find(seen, SETTINGS) == []


def test_a_training_that_another_cluster_runs_is_not_missed() -> None:
    (finding,) = training.find(snapshot(()), SETTINGS)
    assert (finding.severity, finding.alert) == (Severity.UNKNOWN, None)
    assert "job 99 of ben on x7 trains it, which the queue does not show here" in finding.text
    (finding,) = training.find(snapshot((), age_s=200), SETTINGS)
    assert finding.severity is Severity.CRITICAL
