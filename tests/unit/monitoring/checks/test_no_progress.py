"""Attempts in a row that saved no new checkpoint."""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.training import no_progress
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.attempts.events import Attempt
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING


def found(row: int, is_finished: bool = False) -> list[str]:
    """Return the texts found after `row` attempts without progress."""
    snapshot = Snapshot(NOW, (RUNNING,), attempts_without_progress=row, is_finished=is_finished)
    return [one.text for one in no_progress.find(snapshot, Settings("demo", "the team"))]


def test_attempts_without_progress_are_found_before_the_chain_stops() -> None:
    assert found(1) == []
    (before,), (stopped,) = found(2), found(3)
    assert missing(before, "2", "3", "opsctl attempts") == []
    assert missing(stopped, "3", "opsctl attempts") == []


def test_a_training_that_stopped_itself_is_critical_after_one_attempt() -> None:
    ended = (Attempt(number=1, id="7", job_id=7, reason="skipped-iterations", closed_at=NOW),)
    (finding,) = no_progress.find(Snapshot(NOW, attempts=ended, learned_nothing=True), Settings("demo", "us"))
    assert finding.severity == Severity.CRITICAL
    (evidence,) = finding.evidence
    assert missing(evidence, "attempt 1", "7", "skipped-iterations") == []


def test_a_finished_training_needs_no_further_checkpoint() -> None:
    assert found(3, is_finished=True) == []


def test_a_chain_that_stops_is_critical_with_the_attempts_as_evidence() -> None:
    ended = tuple(
        Attempt(number=n, id=str(n), job_id=n, reason="failed", closed_at=NOW - timedelta(hours=5 - n))
        for n in range(1, 5)
    )
    two, three = (
        no_progress.find(Snapshot(NOW, attempts=ended, attempts_without_progress=row), Settings("demo", "us"))[0]
        for row in (2, 3)
    )
    assert (two.severity, three.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert [missing(line, f"attempt {n}", "failed") for n, line in enumerate(three.evidence, 2)] == [[], [], []]
    assert three.since == ended[1].closed_at
