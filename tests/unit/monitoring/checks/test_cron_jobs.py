"""Jobs of the pseudo-cron that do not do their work."""

from __future__ import annotations

import pytest

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.services import cron_jobs
from opsctl.monitoring.snapshot import CronJob, CronSeen, Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW


def found(*jobs: CronJob, is_started: bool = True) -> list[tuple[str, str]]:
    snapshot = Snapshot(NOW, cron=CronSeen("/cron", is_started, jobs=jobs))
    return [(one.key, one.text) for one in cron_jobs.find(snapshot, Settings("demo", "us"))]


@pytest.mark.parametrize(
    ("job", "facts"),
    [
        (CronJob("hourly/refill", "failed", 2, NOW, "exit code 1"), ("failed", "2 times", "exit code 1")),
        (CronJob("daily/fs-watchdog", "failed", 1, NOW), ("failed",)),
        (CronJob("hourly/refill", "running", 3), ("failed", "3 times")),
        (CronJob("hourly/refill", "hanging"), ("hangs",)),
        (CronJob("hourly/refill", "missing"), ("missing",)),
        (CronJob("hourly/refill", "lost"), ()),
    ],
)
def test_a_failing_cron_job_is_found_under_its_name(job: CronJob, facts: tuple[str, ...]) -> None:
    ((key, text),) = found(job)
    assert key == f"cron_jobs:{job.name}" and missing(text, job.name, *facts) == []


def test_one_failure_within_the_hour_and_a_stopped_cron_are_none() -> None:
    assert (
        found(CronJob("hourly/refill", "failed", 1), CronJob("daily/x", "done"), CronJob("hourly/y", "running")) == []
    )
    assert found(CronJob("hourly/refill", "hanging"), is_started=False) == []
