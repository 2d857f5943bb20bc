"""Test what the pseudo-cron has on record: its chain, its heartbeat, the runs of its jobs."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.monitoring.gather.services import cron_seen
from opsctl.run.state.scheduler import (
    CronChain,
    CronComment,
    CronPaths,
    RunEvent,
    append_run,
    beat_heart,
    heartbeat,
    histories,
    new_run_id,
    parse_cron_comment,
    read_chain,
    runs_of,
    write_chain,
)

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture
def paths(tmp_path: Path) -> CronPaths:
    (tmp_path / ".opsctl").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    return CronPaths(tmp_path)


def chain(**changes: object) -> CronChain:
    said = {"token": "ab", "via": "slurm", "period_s": 3600, "carried_by": "ann", "host": "x", "started_at": AT}
    return CronChain(**{**said, **changes})  # type: ignore[arg-type]


def event(kind: str, run: str, minute: int = 0, **more: object) -> RunEvent:
    said = {"event": kind, "run": run, "job": "hourly/one", "at": AT + timedelta(minutes=minute)}
    return RunEvent(**{**said, **more})  # type: ignore[arg-type]


def test_the_chain_comes_back_as_it_was_written(paths: CronPaths) -> None:
    assert read_chain(paths) is None
    write_chain(paths, chain())
    assert read_chain(paths) == chain()


@pytest.mark.parametrize("text", ["", '{"token": "a', "[]", '{"token": "a", "via": "crond"}'])
def test_a_damaged_chain_is_named_with_the_option_that_fixes_it(paths: CronPaths, text: str) -> None:
    paths.chain.write_text(text)
    with pytest.raises(OpsctlError, match=r"chain\.json.*--take-over"):
        read_chain(paths)


@pytest.mark.parametrize("period_s", [0, -1, 1, 3601])
def test_a_period_that_would_flood_the_queue_is_damage(paths: CronPaths, period_s: int) -> None:
    write_chain(paths, chain(period_s=period_s))
    with pytest.raises(OpsctlError, match="period_s"):
        read_chain(paths)


def test_what_a_newer_release_has_added_is_passed_over(paths: CronPaths) -> None:
    write_chain(paths, chain())
    paths.chain.write_text(paths.chain.read_text().replace('"schema_version": 1', '"schema_version": 2, "mood": 7'))
    found = read_chain(paths)
    assert found is not None and found.token == "ab"


def test_a_heartbeats_age_is_by_the_file_servers_clock(paths: CronPaths) -> None:
    assert heartbeat(paths) is None
    beat_heart(paths)
    os.utime(paths.heartbeat, (time.time() - 7000, time.time() - 7000))
    beat = heartbeat(paths)
    assert beat is not None and 6999 < beat.age_s < 7010
    assert beat.is_dead(3600) and not beat.is_dead(7200)
    assert [path.name for path in paths.state.iterdir()] == ["heartbeat"]


def test_a_comment_says_which_tick_or_run_a_job_is() -> None:
    tick = parse_cron_comment("opsctl cron=ab12 tick=7200")
    assert tick == CronComment("ab12", "tick", "7200") and tick.due == 7200
    run = parse_cron_comment(str(CronComment("ab12", "run", "20261122T120000-abcdef")))
    assert run is not None and run.due is None
    for text in ("", "opsctl run=1 submit=2", "opsctl cron=ab tick=1 more", "opsctl cron=XY tick=1"):
        assert parse_cron_comment(text) is None


def test_of_several_endings_the_first_counts_and_nothing_after_it() -> None:
    (run,) = runs_of(
        [
            event("asked", "1", limit_s=60),
            event("began", "1", 1, host="n1", job_id=7),
            event("queued", "1", 1, job_id=7),
            event("ended", "1", 2, state="failed", exit_code=3),
            event("ended", "1", 3, state="lost"),
            event("queued", "1", 4, job_id=9),
        ]
    )
    assert (run.state, run.exit_code, run.job_id, run.host) == ("failed", 3, 7, "n1")


def test_failures_in_a_row_end_with_a_success_and_what_nobody_knows_is_neither() -> None:
    states = ["failed", "done", "timeout", "lost", "refused", "cancelled", "missing"]
    events = []
    for number, state in enumerate(states):
        events += [event("asked", str(number), number), event("ended", str(number), number, state=state)]
    found = histories(runs_of(events))["hourly/one"]
    assert found.failures == 3 and found.failing_since == AT + timedelta(minutes=2)


def test_ids_sort_by_time() -> None:
    ids = [new_run_id(AT + timedelta(seconds=second)) for second in range(5)]
    assert ids == sorted(ids)


def test_the_checks_see_what_is_on_record(paths: CronPaths) -> None:
    now = datetime.now(UTC)
    assert not cron_seen(paths.folder / "nowhere", now).is_started
    write_chain(paths, chain())
    beat_heart(paths)
    lines = [event("asked", "1", limit_s=60), event("began", "1", 1), event("asked", "2", job="daily/b")]
    lines += [event("ended", "2", 3, job="daily/b", state="timeout", detail="Slurm ended it")]
    for line in lines:
        append_run(paths, line)
    paths.daily.mkdir()
    paths.job("daily/b").touch()
    seen = cron_seen(paths.folder, now + timedelta(days=400))
    assert seen.is_started and seen.carried_by == "ann via slurm" and seen.heartbeat_at is not None
    jobs = {job.name: (job.state, job.failures, job.detail) for job in seen.jobs}
    assert jobs["hourly/one"][0] == "hanging"
    assert jobs["daily/b"] == ("failed", 1, "timeout: Slurm ended it")
    paths.job("daily/b").unlink()  # as cron remove does
    assert [job.name for job in cron_seen(paths.folder, now).jobs] == ["hourly/one"]
    paths.chain.write_text("{")
    assert cron_seen(paths.folder, now).problem
