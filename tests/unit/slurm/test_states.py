"""The one table of Slurm's words, against Slurm's own list of them, and what a job of each state is."""

from __future__ import annotations

import pytest
from msgspec import structs

from opsctl.slurm.states import ENDS, PHASES, WAITS, Phase, Reason, State, Wait, end_of, phase_of, wait_of
from tests.unit.monitoring.jobs import RUNNING, pending

#: JOB STATE CODES of squeue(1).
MAN_PAGE = """
BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING PREEMPTED RUNNING
RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED
TIMEOUT
"""


def test_the_table_has_every_state_of_the_manual_once_and_no_other() -> None:
    assert sorted(State) == sorted(MAN_PAGE.split())
    assert set(PHASES) == set(State) and Phase.UNKNOWN not in PHASES.values()


def test_only_ends_say_what_ended_a_job() -> None:
    assert {PHASES[state] for state in ENDS} == {Phase.ENDED}
    assert set(State) - set(ENDS) >= {State.COMPLETED, State.FAILED}
    assert end_of("NODE_FAIL") == "node-failure" and end_of("FAILED") is None and end_of("VAPORISED") is None


@pytest.mark.parametrize(
    ("state", "runs", "is_held"),
    [
        ("PENDING", False, False),
        ("RUNNING", True, False),
        ("CONFIGURING", True, False),
        ("COMPLETING", True, False),
        ("SUSPENDED", False, False),
        ("STOPPED", False, False),
        ("REQUEUED", False, False),
        ("REQUEUE_HOLD", False, True),
        ("SPECIAL_EXIT", False, True),
    ],
)
def test_what_a_job_in_this_state_is(state: str, runs: bool, is_held: bool) -> None:
    job = structs.replace(RUNNING, state=state)
    assert (job.is_running, job.is_held, job.is_pending) == (runs, is_held, state == "PENDING")
    assert job.phase is not Phase.ENDED


def test_a_job_in_a_state_that_nobody_knows_runs_if_it_has_nodes_and_is_never_over() -> None:
    job = structs.replace(RUNNING, state="EXPEDITING")
    assert (job.phase, job.is_running, job.is_held, job.cannot_start) == (Phase.ON_NODES, True, False, False)
    assert structs.replace(job, nodes="").phase is phase_of("EXPEDITING") is phase_of("") is Phase.UNKNOWN
    assert not structs.replace(job, nodes="").is_running


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "launch failed requeued held"])
def test_a_pending_job_that_a_person_holds_is_held_in_older_and_newer_slurms_words(reason: str) -> None:
    assert pending(reason).is_held and pending(reason.replace(" ", "_")).is_held
    assert not structs.replace(RUNNING, reason=reason).is_held


def test_a_pending_job_whose_reason_does_not_go_away_cannot_start() -> None:
    for reason, wait in WAITS.items():
        job = pending(reason)
        assert (job.is_held, job.cannot_start) == (wait is Wait.PERSON, wait is not Wait.PERSON), reason
        assert not structs.replace(job, state="RUNNING").cannot_start


@pytest.mark.parametrize("reason", ["None", "Priority", "Dependency", "BeginTime", "QOSMaxJobsPerUserLimit", ""])
def test_for_any_other_reason_a_job_just_waits(reason: str) -> None:
    assert wait_of(reason) is Wait.QUEUE
    assert not pending(reason).is_held and not pending(reason).cannot_start


def test_the_reasons_are_in_slurms_words() -> None:
    assert Reason("DependencyNeverSatisfied") in WAITS and Reason("launch failed requeued held") in WAITS


@pytest.mark.parametrize(
    ("reason", "wait"),
    [
        ("JobHeldUser,JobHeldAdmin", Wait.PERSON),
        ("BeginTime,JobHeldAdmin", Wait.QUEUE),
        ("BadConstraints,JobHeldUser", Wait.QUEUE),
    ],
)
def test_tasks_in_one_row_wait_for_what_all_of_them_wait_for(reason: str, wait: Wait) -> None:
    assert wait_of(reason) is wait
