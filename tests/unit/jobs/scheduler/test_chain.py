from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from opsctl.jobs.scheduler.chain import MOST_QUEUED, needed, ticks_of
from opsctl.slurm.types import Job

NOW, PERIOD, TOKEN = 1_000_000.0, 100, "abcdef"


def job(due: int, job_id: int = 0, **changes: Any) -> Job:
    values: dict[str, Any] = {
        **{"job_id": job_id or due, "array_job_id": job_id or due, "array_task": "", "name": "x", "user": "ann"},
        **{"partition": "p", "state": "PENDING", "reason": "BeginTime", "nodes": "", "node_count": 1, "elapsed_s": 0},
        **{"time_limit_s": 60, "submitted_at": datetime.now(UTC), "started_at": None, "ends_at": None},
        **{"dependency": "", "comment": f"opsctl cron={TOKEN} tick={due}", "work_dir": "/"},
    }
    return Job(**{**values, **changes})


def found(*jobs: Job, covered: int | None = None, own_job: int = 0, now_s: float = NOW) -> tuple[list[int], list[int]]:
    need = needed(ticks_of(jobs, TOKEN, "ann"), now_s, covered, PERIOD, own_job)
    return list(need.submit), list(need.cancel)


def test_the_next_two_due_times_are_submitted_and_nothing_twice() -> None:
    assert found() == ([1_000_100, 1_000_200], [])
    assert found(job(1_000_100)) == ([1_000_200], [])
    assert found(job(1_000_100), job(1_000_200)) == ([], [])


def test_one_that_waits_for_its_turn_counts_and_one_that_is_held_or_cannot_start_does_not() -> None:
    waits = job(1_000_100, reason="Priority")
    assert found(waits, job(1_000_200)) == ([], [])
    for reason in ("JobHeldAdmin", "JobHeldUser", "BadConstraints"):
        assert found(job(1_000_100, reason=reason), job(1_000_200)) == ([1_000_100], [])


def test_a_held_one_has_one_substitute_however_often_it_is_looked_at() -> None:
    held = job(1_000_100, 7, reason="JobHeldAdmin")
    assert found(held, job(1_000_100, 8), job(1_000_200)) == ([], [])


def test_what_is_covered_is_cancelled_where_it_still_waits() -> None:
    jobs = [job(999_900), job(1_000_000, state="RUNNING"), job(1_000_100), job(1_000_200)]
    assert found(*jobs, covered=1_000_000) == ([], [999_900])
    assert found(*jobs, covered=999_800) == ([], [])


def test_a_tick_does_not_count_itself() -> None:
    own = job(1_000_100, 5, state="RUNNING")
    assert found(own, own_job=5, now_s=1_000_100.0) == ([1_000_200, 1_000_300], [])


def test_others_jobs_of_that_comment_and_other_chains_do_not_count() -> None:
    foreign = [job(1_000_100, user="eve"), job(1_000_200, comment=f"opsctl cron=123456 tick={1_000_200}")]
    assert found(*foreign) == ([1_000_100, 1_000_200], [])


def test_a_queue_full_of_ticks_that_cannot_start_gets_no_more() -> None:
    stuck = [job(1_000_000 + 100 * number, reason="JobHeldAdmin") for number in range(1, MOST_QUEUED + 1)]
    assert found(*stuck) == ([], [])


def test_what_is_about_to_be_cancelled_and_the_tick_that_asks_leave_room() -> None:
    stuck = [job(1_000_000 + 100 * number, reason="JobHeldAdmin") for number in range(1, MOST_QUEUED + 1)]
    assert found(*stuck, covered=1_000_100) == ([1_000_100], [1_000_100])
    own = job(999_900, 5, state="RUNNING")
    assert found(own, *stuck[1:], own_job=5) == ([1_000_100], [])
