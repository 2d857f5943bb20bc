"""A training that runs and does not save."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from msgspec import structs
from msgspec.structs import replace as replace_in

from opsctl.monitoring.check import Settings, run_detectors
from opsctl.monitoring.checks.checkpoints import checkpoint_age
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.checkpoints.inventory import Checkpoint
from opsctl.run.config.schema import ExpectTable, WatchTable
from opsctl.run.logs.records import Measured
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING
from trainer.formats.logs.log_lines import CheckpointFailed
from trainer.recipe.save_schedule import SavePhase, SaveSchedule

#: BLOOM: a save each 100 iterations of 105 s, 2.9 h; an evaluation of 12 minutes, a save of 40 s.
BLOOM = Settings("tr11", "us", saves=SaveSchedule((SavePhase(100),)))
MEASURED = Measured(seconds_per_iteration=105.0, longest_evaluation_seconds=720.0, longest_save_seconds=40.0)


def found(saved_h: float, running_h: float = 50, settings: Settings = BLOOM, **seen: object) -> list[Finding]:
    job = structs.replace(RUNNING, started_at=NOW - timedelta(hours=running_h))
    seen = {"measured": MEASURED, "jobs": (job,), **seen}
    snapshot = Snapshot(
        NOW,
        was_submitted=True,
        checkpoint=Checkpoint(Path("/c/global_step30000"), 30_000, 1),
        checkpoint_at=NOW - timedelta(hours=saved_h),
        **seen,  # type: ignore[arg-type]
    )
    return run_detectors([checkpoint_age], snapshot, settings)


def test_an_overdue_save_is_found_within_an_hour_and_is_critical_later() -> None:
    assert found(3.4) == []
    (late,), (lost,) = found(3.7), found(7.5)
    assert (late.severity, lost.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert missing(late.text, "iteration 30000", "3.7 h") == []
    assert late.since is not None and timedelta(minutes=1) < NOW - late.since < timedelta(minutes=30)


def test_only_the_time_that_it_runs_counts_and_a_start_takes_longer() -> None:
    assert found(200, running_h=3.9) == []
    assert found(200, running_h=4.3) != []


def test_what_somebody_said_counts_and_what_the_plan_expects_where_nothing_is_measured() -> None:
    assert found(1.5, settings=Settings("x", "us", WatchTable(checkpoint_most="1:00:00")))
    expect = ExpectTable(seconds_per_iteration=105.0)
    assert found(
        5, settings=Settings("x", "us", expect=expect, saves=SaveSchedule((SavePhase(100),))), measured=Measured()
    )
    assert found(500, measured=Measured()) == []


def test_a_save_is_late_by_the_interval_of_the_current_phase() -> None:
    early = SaveSchedule((SavePhase(10, 30_000), SavePhase(100)))
    late = SaveSchedule((SavePhase(10, 40_000), SavePhase(100)))
    assert found(1.0, settings=replace(BLOOM, saves=early)) == []
    (finding,) = found(1.0, settings=replace(BLOOM, saves=late))
    assert missing(finding.evidence[-1], "10", "40,000", "100") == []


def test_what_does_not_run_saves_nothing_and_a_finished_training_has() -> None:
    assert found(9, jobs=(structs.replace(RUNNING, state="SUSPENDED"),)) == found(9, is_finished=True) == []
    (blind,) = found(9, checkpoint_problem="latest is damaged")
    assert blind.severity is Severity.UNKNOWN and "latest is damaged" in blind.text


def test_a_failed_save_is_found_until_a_later_one_succeeds() -> None:
    why = "cannot write /c/x: No space left on device"
    failed = replace_in(MEASURED, failed_save=CheckpointFailed(30_100, "/c", why))
    (finding,) = found(1.0, measured=failed)
    assert (finding.severity, finding.key) == (Severity.WARNING, "checkpoint_age:iteration 30100")
    assert missing(finding.text, "iteration 30100", why, "iteration 30000") == []
    assert [one.key for one in found(7.5, measured=failed)] == ["checkpoint_age", "checkpoint_age:iteration 30100"]
    earlier = replace_in(failed, failed_save=CheckpointFailed(30_000, "/c", "cannot write /c/x"))
    assert found(1.0, measured=earlier) == found(1.0, measured=failed, jobs=()) == []


def test_a_state_that_is_not_finite_is_critical_also_after_its_job_until_there_is_a_later_checkpoint() -> None:
    refused = CheckpointFailed(30_100, "/c", "rank 3 holds weights that are not finite: x", not_finite=True)
    measured = replace_in(MEASURED, failed_save=refused)
    for findings in (found(1.0, measured=measured), found(1.0, measured=measured, jobs=())):
        (finding,) = findings
        assert (finding.severity, finding.key) == (Severity.CRITICAL, "checkpoint_age:iteration 30100")
        assert refused.why in finding.text
    later = Checkpoint(Path("/c/global_step30101"), 30_101, 1)
    snapshot = Snapshot(NOW, (), was_submitted=True, checkpoint=later, measured=measured)
    assert run_detectors([checkpoint_age], snapshot, BLOOM) == []
