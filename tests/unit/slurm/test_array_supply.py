"""The number of arrays that should wait, and that do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from opsctl.slurm.arrays import arrays_behind, arrays_missing
from opsctl.slurm.types import Job
from tests.unit.monitoring.jobs import HELD, RUNNING, WAITING_FOR_CHAIN, WAITING_FOR_TASK, pending

COMPLETING = structs.replace(RUNNING, state="COMPLETING")
THIRD = pending("Dependency", 21, "1-3%1")
REQUEUED = structs.replace(RUNNING, state="REQUEUED", nodes="")
HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("jobs", "behind"),
    [
        ((), ()),
        ((RUNNING,), ()),
        ((RUNNING, WAITING_FOR_TASK), ()),  # the rest of the live array is not behind it
        ((RUNNING, WAITING_FOR_TASK, THIRD, WAITING_FOR_CHAIN), (20, 21)),
        ((WAITING_FOR_CHAIN,), ()),  # it comes first
        ((THIRD, WAITING_FOR_CHAIN), (21,)),
        ((COMPLETING, WAITING_FOR_CHAIN, THIRD), (21,)),
        ((COMPLETING, WAITING_FOR_TASK, WAITING_FOR_CHAIN), (20,)),
        ((REQUEUED, WAITING_FOR_CHAIN), (20,)),
        ((RUNNING, HELD), (30,)),
    ],
)
def test_arrays_wait_behind_the_one_that_runs_or_comes_first(jobs: Sequence[Job], behind: tuple[int, ...]) -> None:
    assert arrays_behind(jobs) == behind


@pytest.mark.parametrize(
    ("jobs", "keep", "missing"),
    [
        ((), 2, 1),
        ((COMPLETING,), 2, 1),
        ((RUNNING,), 2, 2),
        ((RUNNING, WAITING_FOR_CHAIN), 2, 1),
        ((RUNNING, WAITING_FOR_CHAIN, THIRD), 2, 0),
        ((WAITING_FOR_CHAIN,), 2, 2),
        ((RUNNING, WAITING_FOR_CHAIN, THIRD), 1, 0),
        ((RUNNING,), 0, 0),
        ((), 0, 0),
    ],
)
def test_two_are_kept_behind_the_live_one_and_one_starts_where_nothing_is(
    jobs: Sequence[Job], keep: int, missing: int
) -> None:
    assert arrays_missing(jobs, keep, None, HOUR_S, 3) == missing


@pytest.mark.parametrize(
    ("jobs", "left_h", "missing"),
    [
        # The running task has trained 7805 s of its hour-long share: nothing more is expected of it.
        ((RUNNING,), 0.1, 1),
        ((RUNNING,), 2.7, 1),  # 2.97 h with slack, three tasks of one hour each
        ((RUNNING,), 2.8, 2),
        ((RUNNING,), 50.0, 2),
        ((structs.replace(RUNNING, elapsed_s=0), WAITING_FOR_TASK), 2.7, 0),  # 1 h + two tasks waiting
        ((structs.replace(RUNNING, elapsed_s=0), WAITING_FOR_TASK), 2.8, 1),
        ((RUNNING,), 0.0, 0),
        ((), 0.0, 1),  # by the speed it is finished, by the checkpoint it is not
        ((), 0.1, 1),
    ],
)
def test_no_more_is_queued_than_the_training_still_needs(jobs: Sequence[Job], left_h: float, missing: int) -> None:
    assert arrays_missing(jobs, 2, left_h * HOUR_S, HOUR_S, 3) == missing


@pytest.mark.parametrize(("per_task_s", "tasks"), [(0.0, 3), (-60.0, 3), (HOUR_S, 0)])
def test_where_a_task_trains_for_no_time_the_number_counts(per_task_s: float, tasks: int) -> None:
    assert arrays_missing((RUNNING,), 2, HOUR_S, per_task_s, tasks) == 2
