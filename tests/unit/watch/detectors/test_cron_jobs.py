"""Jobs of the pseudo-cron that do not do their work."""

from __future__ import annotations

import pytest

from opsctl.watch.detector import Settings
from opsctl.watch.detectors import cron_jobs
from opsctl.watch.seen import CronJob, CronSeen
from opsctl.watch.snapshot import Snapshot
from tests.unit.watch.jobs import NOW


def found(*jobs: CronJob, is_started: bool = True) -> list[tuple[str, str]]:
    snapshot = Snapshot(NOW, cron=CronSeen("/cron", is_started, jobs=jobs))
    return [(one.key, one.text) for one in cron_jobs.find(snapshot, Settings("demo", "us"))]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (CronJob("hourly/refill", "failed", 2, NOW, "exit code 1"), "has failed 2 times in a row: exit code 1"),
        (CronJob("daily/fs-watchdog", "failed", 1, NOW), "has failed"),
        (CronJob("hourly/refill", "running", 3), "has failed 3 times in a row"),
        (CronJob("hourly/refill", "hanging"), "hangs"),
        (CronJob("hourly/refill", "missing"), "is missing"),
        (CronJob("hourly/refill", "lost"), "was started, and nobody knows what became of it"),
    ],
)
def test_what_it_does_not_do_is_told_under_its_name(job: CronJob, words: str) -> None:
    assert found(job) == [(f"cron_jobs:{job.name}", f"cron job {job.name} {words}")]


def test_one_failure_within_the_hour_and_a_stopped_cron_are_none() -> None:
    assert (
        found(CronJob("hourly/refill", "failed", 1), CronJob("daily/x", "done"), CronJob("hourly/y", "running")) == []
    )
    assert found(CronJob("hourly/refill", "hanging"), is_started=False) == []
