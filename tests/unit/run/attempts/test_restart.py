"""When a job restarts its training after a failure, and on which nodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.restart import LEAST_LEFT_S, Decision, JobNow, after_failure
from opsctl.run.attempts.verdict import Cause, Verdict
from tests.unit.run.attempts.test_failure_limit import NOON, ended

ALL, TRAINED = ("x1", "x2", "x3"), ("x1", "x2")
JOB = JobNow(ALL, TRAINED, spare=1, restarts=5, time_left_s=7200.0)
NO_SPARE = replace(JOB, allocated=TRAINED, spare=0)
ECC = Verdict(cause=Cause.GPU_ECC, node="x2", confidence=0.9)
USER = Verdict(cause=Cause.USER_CODE, node="x2", confidence=0.9, user_fault=True)


def failed(reason: str = Ending.SIGNAL, saved: bool = True, **changes: Any) -> Attempt:
    return msgspec.structs.replace(ended(3, reason, start=0, end=10 if saved else 0), **changes)


def decide(last: Attempt, job: JobNow = JOB, before: tuple[Attempt, ...] = ()) -> Decision:
    return after_failure(last, [*before, last], NOON, job)


@pytest.mark.parametrize("reason", [Ending.SIGNAL, Ending.FAILED, Ending.HANG, Ending.OUT_OF_MEMORY])
def test_a_failure_of_no_known_node_restarts_on_the_same_nodes(reason: Ending) -> None:
    assert decide(failed(reason)) == Decision(ALL)


@pytest.mark.parametrize("reason", sorted({*Ending} - {"signal", "failed", "hang", "out-of-memory", "node-failure"}))
def test_what_ended_as_planned_by_a_person_or_by_slurm_does_not_restart(reason: str) -> None:
    assert decide(failed(reason)).nodes is None


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (failed(Ending.NODE_FAILURE, lost_nodes=("x2",)), ("x1", "x3")),
        (failed(Ending.FAILED, verdict=ECC), ("x1", "x3")),
        (failed(Ending.NODE_FAILURE, lost_nodes=("x1", "x2")), None),
        (failed(Ending.NODE_FAILURE), None),
    ],
)
def test_a_failed_node_is_replaced_by_a_spare_and_ends_the_job_without_one(
    last: Attempt, expected: tuple[str, ...] | None
) -> None:
    assert decide(last).nodes == expected
    assert decide(last, NO_SPARE).nodes is None
    # The number of restarts limits only those on the same nodes.
    assert decide(last, replace(JOB, restarts=0)).nodes == expected


@pytest.mark.parametrize(
    ("lost", "spare", "expected"),
    [
        (("x2",), 1, Decision(("x1", "x3"))),
        (("x2",), 0, Decision(("x1",), train_on=1)),
        (("x1", "x2"), 0, None),
    ],
)
def test_without_a_spare_node_a_job_continues_on_fewer_where_a_layout_keeps_the_batch(
    lost: tuple[str, ...], spare: int, expected: Decision | None
) -> None:
    job = replace(JOB if spare else NO_SPARE, restarts=0, fewer=lambda left: min(left, 1))
    found = decide(failed(Ending.NODE_FAILURE, lost_nodes=lost), job)
    assert found == expected if expected is not None else found.nodes is None
    assert decide(failed(Ending.KILL_SWITCH, lost_nodes=lost), job).nodes is None


@pytest.mark.parametrize(("wait_s", "continues"), [(1700.0, False), (1900.0, True)])
def test_fewer_nodes_are_not_trained_on_when_the_next_task_on_all_starts_sooner(wait_s: float, continues: bool) -> None:
    job = replace(NO_SPARE, allocated=ALL, used=ALL, time_left_s=5400.0, fewer=lambda left: left)
    last = failed(Ending.NODE_FAILURE, lost_nodes=("x2",), job_id=7, opened_at=NOON)
    before = msgspec.structs.replace(ended(1), job_id=6, closed_at=NOON - timedelta(seconds=wait_s))
    # Two of three nodes lose a third of 5,400 s.
    found = decide(last, job, before=(before,))
    assert (found.nodes == ("x1", "x3")) is continues and bool(found.why) is not continues
    assert decide(last, job).nodes == ("x1", "x3"), "no wait is known"
    alone = replace(job, has_next=lambda: False)
    assert decide(last, alone, before=(before,)).nodes == ("x1", "x3"), "no task would start"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"must_leave": "the kill switch is triggered"}, "kill switch"),
        ({"time_left_s": LEAST_LEFT_S - 1}, "0:01:59"),
        ({"time_left_s": -300.0}, "0:00:00"),
        ({"restarts": 0}, "restarts = 0"),
    ],
)
def test_no_restart_when_the_job_leaves_or_has_no_time_or_none_is_allowed(change: dict[str, Any], why: str) -> None:
    found = decide(failed(), replace(JOB, **change))
    assert found.nodes is None and why in found.why


def test_restarts_are_counted_in_the_job_and_a_job_without_limit_has_time() -> None:
    assert decide(failed(restart=4)).nodes == ALL
    assert decide(failed(restart=5)).nodes is None
    assert decide(failed(), replace(JOB, time_left_s=None)).nodes == ALL


def test_without_progress_a_job_restarts_once_and_the_last_try_is_the_next_tasks() -> None:
    none = failed(saved=False)
    assert decide(none).nodes == ALL
    assert decide(none, before=(ended(2),)).nodes is None
    assert decide(none, before=(ended(1), ended(2, end=10))).nodes == ALL
    assert decide(failed(), before=(ended(1), ended(2))).nodes == ALL


def test_a_users_error_restarts_only_after_progress() -> None:
    assert decide(failed(saved=False, verdict=USER)).nodes is None
    assert decide(failed(verdict=USER)).nodes == ALL
