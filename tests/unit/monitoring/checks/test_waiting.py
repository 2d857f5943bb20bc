"""Waits in the queue that are longer than usual."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec import structs

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.training import earlier_waits_s, waiting
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.attempts.events import Attempt
from opsctl.run.config.schema import WatchTable
from opsctl.slurm.types import Job
from tests.facts import missing
from tests.unit.monitoring.jobs import HELD, NOW, RUNNING, pending

#: Hours that tr1-13B's tasks waited: "unpredictable, up to 30".
WAITS = (1, 4, 12, 2, 30, 6, 3)


def attempts(waits_h: tuple[float, ...], ended_h_ago: float) -> tuple[Attempt, ...]:
    """20 hours each, the last of which ended so long ago."""
    found: list[Attempt] = []
    at = NOW - timedelta(hours=ended_h_ago)
    for number in range(len(waits_h), 0, -1):
        begun = at - timedelta(hours=20)
        found.append(Attempt(number=number, id=str(number), job_id=number, opened_at=begun, closed_at=at, reason="x"))
        at = begun - timedelta(hours=waits_h[number - 1])
    first = replace_chain(found[-1], at)
    return (first, *reversed(found[:-1]))


def replace_chain(attempt: Attempt, submitted_at: object) -> Attempt:

    return structs.replace(attempt, chain_submitted_at=submitted_at)


def found(job: Job, waited_h: float, waits_h: tuple[float, ...] = WAITS, **known: object) -> list[str]:
    submitted = structs.replace(job, submitted_at=NOW - timedelta(days=20))
    seen = Snapshot(NOW, (submitted,), attempts=attempts(waits_h, waited_h))
    findings = waiting.find(seen, Settings("demo", "us", watch=WatchTable(**known)))  # type: ignore[arg-type]
    assert {one.severity for one in findings} <= {Severity.WARNING}
    return [one.text for one in findings]


def test_the_waits_so_far_are_read_from_the_attempts() -> None:
    assert [round(wait / 3600) for wait in earlier_waits_s(attempts(WAITS, 1))] == list(WAITS)


def test_a_stop_by_the_kill_switch_is_no_wait_that_later_ones_are_held_against() -> None:
    """Tasks 3 to 5 had nodes during it and left at once: no one waited for 68 hours."""
    told = attempts((2, 4, 68, 3, 5, 6, 1), 20)
    named = tuple(
        structs.replace(one, array_job_id=12, array_task=str(task))
        for one, task in zip(told, (1, 2, 6, 7, 8, 9, 10), strict=True)
    )
    assert [round(wait / 3600) for wait in earlier_waits_s(named)] == [2, 4, 3, 5, 6, 1]
    for first, waits in ((1, [2, 4, 68, 3, 5, 6, 1]), (3, [2, 4, 3, 5, 6, 1])):
        anew = tuple(
            structs.replace(one, array_job_id=12 if n < 2 else 20, array_task=str(task))
            for n, (one, task) in enumerate(zip(told, (9, 10, *range(first, first + 5)), strict=True))
        )
        assert [round(wait / 3600) for wait in earlier_waits_s(anew)] == waits


def test_a_wait_half_as_long_again_as_the_longest_is_found() -> None:
    (text,) = found(pending("Resources"), 46)
    assert missing(text, "12_[2-3%1]", "46.0 h", "gpu_p5", "last 7", "30.0 h") == []
    assert found(pending("Priority"), 44) == []


def test_a_day_at_least_even_where_waits_are_short() -> None:
    short = (0.1,) * 8
    assert found(pending("Resources"), 23, short) == [] and found(pending("Resources"), 25, short) != []


def test_with_few_waits_known_only_two_days_are() -> None:
    assert found(pending("Resources"), 40, (1, 1)) == [] and found(pending("Resources"), 49, (1, 1)) != []


def test_wait_most_is_the_limit() -> None:
    (text,) = found(pending("Resources"), 3, wait_most="2:00:00")
    assert missing(text, "[watch] wait_most", "2.0 h") == []
    assert found(pending("Resources"), 60, wait_most="3-0") == []


@pytest.mark.parametrize(
    "job",
    [
        pending("BeginTime"),
        pending("ReqNodeNotAvail, Reserved for maintenance"),
        HELD,
        pending("BadConstraints"),
        RUNNING,
    ],
    ids=lambda job: job.reason,
)
def test_what_is_no_wait_in_the_queue_is_none(job: Job) -> None:
    assert found(job, 200) == []
