"""Test whom a request is meant for, what is refused at once, and what is carried out of what was meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from opsctl.core.errors import OpsctlError
from opsctl.jobs.control.carry_out import find, meant_of
from opsctl.jobs.control.requests import RequestOptions, Seen, resolve
from opsctl.run.attempts.events import Attempt
from opsctl.run.state.requests import Action, Request
from opsctl.slurm.types import Job
from tests.unit.run.attempts.test_close_lost import job as a_job

ATTEMPT = Attempt(number=1, id="13-ab", job_id=13, array_job_id=12, array_task="1", user="ann")


def job(job_id: int, array: int, task: str, state: str = "RUNNING", user: str = "ann", **changes: Any) -> Job:
    return structs.replace(a_job(job_id, state), array_job_id=array, array_task=task, user=user, **changes)


RUNS = job(13, 12, "1")
QUEUED = job(12, 12, "2-3%1", "PENDING")
HELD = job(20, 20, "1-2%1", "PENDING", reason="JobHeldUser")
BENS = job(30, 30, "1-2%1", "PENDING", user="ben")


def meant(action: Action, live: Sequence[Job], wanted: str | None = None, **changes: Any) -> tuple[Request, str]:
    found = resolve("tiny", RequestOptions(action, job=wanted, **changes), Seen(live, "", ATTEMPT, [ATTEMPT]))
    return found.request, found.answers


@pytest.mark.parametrize("action", [Action.SAVE, Action.STOP, Action.REQUEUE, Action.STACKS])
def test_a_request_is_for_the_job_that_trains_and_for_this_life_of_it(action: Action) -> None:
    waits_for_its_turn = job(21, 20, "1")
    request, answers = meant(action, [QUEUED, waits_for_its_turn, RUNS])
    assert (request.owner, request.job, request.attempt, answers) == ("ann", "12_1", "13-ab", "12_1")
    request, answers = meant(action, [QUEUED, waits_for_its_turn, RUNS], "20_1")
    assert (request.job, request.attempt, answers) == ("20_1", "", "20_1")


@pytest.mark.parametrize(
    ("action", "live", "wanted", "said"),
    [
        (Action.SAVE, [], None, "save: .*opsctl submit"),
        (Action.STOP, [QUEUED], None, r"stop: .*12_\[2-3%1\] PENDING \(ann\)"),
        (Action.SAVE, [QUEUED], "12_2", "job 12_2 .*save"),
        (Action.REQUEUE, [QUEUED], "12_2", "job 12_2 .*requeue"),
        (Action.STOP, [RUNS], "12_7", "tiny .*job 12_7 "),
        (Action.STOP, [RUNS], "12_1; id", "tiny .*job 12_1; id "),
        (Action.SAVE, [job(14, 14, ""), job(15, 15, "")], None, "--job"),
        (Action.CANCEL_QUEUED, [RUNS], None, "tiny.*queued"),
        (Action.RELEASE_QUEUED, [RUNS, QUEUED], None, "tiny.*held"),
        (Action.HOLD_QUEUED, [HELD], None, "tiny.*queued"),
        (Action.EXTEND_CHAIN, [], None, "tiny.*runs"),
        (Action.STACKS, [job(13, 12, "1", "COMPLETING")], None, "stacks"),
    ],
)
def test_what_the_job_cannot_do_is_refused_by_name(
    action: Action, live: list[Job], wanted: str | None, said: str
) -> None:
    with pytest.raises(OpsctlError, match=said):
        meant(action, live, wanted)


def test_a_task_that_has_not_started_can_be_stopped_by_its_name() -> None:
    request, answers = meant(Action.STOP, [RUNS, QUEUED], "12_3")
    assert (request.job, request.attempt, request.chains, answers) == ("12_3", "", (12,), "12_1")


def test_a_request_about_the_queue_names_the_arrays_that_were_there() -> None:
    request, answers = meant(Action.CANCEL_QUEUED, [RUNS, QUEUED, HELD])
    assert (request.owner, request.job, request.chains, answers) == ("ann", "", (12, 20), "12_1")
    request, answers = meant(Action.EXTEND_CHAIN, [RUNS, QUEUED, BENS], tasks=4)
    assert (request.owner, request.chains, request.tasks, answers) == ("ben", (12, 30), 4, "")
    request, _ = meant(Action.CANCEL_QUEUED, [QUEUED, BENS])
    assert (request.owner, request.chains) == ("ann", (12,))


def test_where_slurm_shows_nothing_the_one_with_the_lease_can_be_asked_and_the_queue_cannot() -> None:
    blind = Seen(None, "down", ATTEMPT, [ATTEMPT])
    found = resolve("tiny", RequestOptions(Action.SAVE), blind)
    assert (found.request.owner, found.request.job, found.request.attempt) == ("ann", "12_1", "13-ab")
    for wish, look in (
        (RequestOptions(Action.CANCEL_QUEUED), blind),
        (RequestOptions(Action.SAVE), Seen(None, "down")),
        (RequestOptions(Action.SAVE, job="12_2"), blind),
    ):
        with pytest.raises(OpsctlError, match="down"):
            resolve("tiny", wish, look)


@pytest.mark.parametrize(
    ("name", "row"),
    [("12_1", RUNS), ("12_2", QUEUED), ("12_3", QUEUED), ("12_4", None), ("13", None), ("", None), ("a", None)],
)
def test_a_job_is_found_by_the_name_that_squeue_shows(name: str, row: Job | None) -> None:
    assert find(name, [RUNS, QUEUED]) is row


def test_only_what_was_there_when_it_was_asked_is_touched() -> None:
    later = job(40, 40, "1-2%1", "PENDING")
    rows = [RUNS, QUEUED, HELD, later]

    def chosen(action: Action) -> list[int]:
        return [row.array_job_id for row in meant_of(Request(action=action, chains=(12, 20)), rows)]

    assert chosen(Action.CANCEL_QUEUED) == [12, 20]
    assert chosen(Action.HOLD_QUEUED) == [12]
    assert chosen(Action.RELEASE_QUEUED) == [20]
