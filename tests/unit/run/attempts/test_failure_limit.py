"""When a chain stops, and which queued chains would stop for the same reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import (
    FAILURE_LIMIT,
    OTHER_NODES,
    chains_to_cancel,
    failed_too_often,
    keeps_losing_the_lease,
    learned_nothing,
    without_progress,
)
from opsctl.run.attempts.verdict import Cause, Verdict
from opsctl.run.state.chains import REFILL, SUBMIT, Chain, Recorded
from tests.unit.run.attempts.test_close_lost import job

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def minutes(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


def ended(number: int, reason: str = "failed", start: int | None = 0, end: int | None = 0, at: float = 1) -> Attempt:
    return Attempt(
        number=number,
        id=str(number),
        job_id=number,
        iteration_at_start=start,
        checkpoint_at_end=end,
        reason=reason,
        closed_at=minutes(at),
    )


def test_three_attempts_in_a_row_without_a_new_checkpoint_trip_the_brake() -> None:
    attempts = [ended(number) for number in (1, 2, 3)]
    assert not failed_too_often(attempts[:2], NOON)
    assert failed_too_often(attempts, NOON)


def test_a_new_checkpoint_starts_the_row_again() -> None:
    attempts = [ended(1), ended(2), ended(3, start=0, end=10), ended(4), ended(5)]
    assert without_progress(attempts, NOON) == 2
    assert not failed_too_often(attempts, NOON)


def test_saving_on_from_before_a_damaged_checkpoint_is_progress_and_saving_nothing_there_is_none() -> None:
    fell_back = ended(3, start=730, end=133)
    assert without_progress([ended(1), ended(2), fell_back], NOON) == 0
    assert failed_too_often([fell_back, *(ended(number, start=133, end=133) for number in (4, 5, 6))], NOON)


def test_leaving_through_the_kill_switch_at_the_end_or_to_another_writer_is_neutral() -> None:
    failures = [ended(1), ended(2)]
    neutral = [ended(3, "kill-switch"), ended(4, "finished"), ended(5, "brake"), ended(5, "overtaken")]
    neutral.append(ended(6, "held"))
    assert without_progress(failures + neutral, NOON) == 2
    assert without_progress([*failures, *neutral, ended(7)], NOON) == 3


def test_one_that_stopped_itself_trips_the_brake_even_after_a_checkpoint_until_somebody_submits() -> None:
    stopped = ended(1, "skipped-iterations", start=0, end=50)
    assert learned_nothing([stopped], NOON) and failed_too_often([stopped], NOON)
    assert failed_too_often([stopped, ended(2, "brake", at=2)], NOON)  # the task that found it adds nothing
    assert not failed_too_often([stopped], minutes(5))
    assert not failed_too_often([stopped, ended(2, "failed", start=50, end=60, at=2)], NOON)


def test_what_a_person_cancels_or_slurm_preempts_is_no_failure() -> None:
    failures = [ended(1), ended(2)]
    cancelled = [ended(number, "cancelled") for number in (3, 4, 5)]
    assert not failed_too_often(cancelled, NOON)
    assert without_progress([*failures, *cancelled], NOON) == 2
    assert failed_too_often([*failures, *cancelled, ended(6)], NOON)
    assert not failed_too_often([ended(number, "preempted") for number in range(1, 9)], NOON)
    for reason in ("node-failure", "time-limit"):
        assert failed_too_often([ended(number, reason) for number in (1, 2, 3)], NOON), reason


def test_only_what_ended_after_the_chain_was_submitted_counts() -> None:
    before = [ended(number, at=-1) for number in (1, 2, 3)]
    assert not failed_too_often(before, NOON)
    assert failed_too_often(before, minutes(-5))
    assert not failed_too_often([*before, ended(4, at=1), ended(5, at=2)], NOON)


def test_an_open_attempt_does_not_count() -> None:
    assert without_progress([Attempt(number=1, id="1", job_id=1, opened_at=NOON), ended(2), ended(3)], NOON) == 2


def test_the_brake_cancels_ones_own_pending_chains_that_it_holds_for() -> None:
    failures = [Attempt(number=n, id=str(n), job_id=n, reason="failed", closed_at=minutes(n)) for n in (1, 2, 3)]
    jobs = [
        job(20, "PENDING", array_task="5-9"),
        job(21, "PENDING", array_task="1-3", submitted_at=minutes(0.5)),
        job(22, "PENDING", submitted_at=minutes(2.5)),  # only one attempt failed since: a person's new try
        job(23, "PENDING", user="bob"),
        job(24, "RUNNING"),
        job(25, "PENDING", comment="opsctl run=abcd submit=t"),
        job(26, "PENDING", comment=""),
    ]
    own = Recorded("abc").own(jobs)
    assert chains_to_cancel(own, failures, "ann") == [20, 21]
    assert chains_to_cancel(own, failures[:2], "ann") == []
    # The third was only refilled, so the first's submission counts for it too, unlike the second's.
    chains = [
        Chain(chain=number, submitted_at=minutes(at), user="ann", array="1-3", how=how)
        for number, at, how in ((20, 0, SUBMIT), (22, 2.5, REFILL))
    ]
    assert chains_to_cancel(own, failures, "ann", chains) == [20, 21, 22]


def test_a_chain_stops_waiting_when_three_of_its_tasks_left_the_lease_to_another() -> None:
    held = [replace(ended(number, "held"), array_job_id=50) for number in (1, 2, 3)]
    of_another, trained = replace(ended(9), array_job_id=60), replace(ended(9), array_job_id=50)
    assert keeps_losing_the_lease([trained, *held[:2], of_another, held[2]], 50)
    assert not keeps_losing_the_lease(held, 60) and not keeps_losing_the_lease(held[:2], 50)
    assert not keeps_losing_the_lease([*held[:2], trained, held[2]], 50)


def of_node(number: int, node: str, confidence: float = 0.9, cause: str = Cause.GPU_ECC) -> Attempt:
    verdict = Verdict(cause=cause, node=node, confidence=confidence)
    return replace(ended(number), verdict=verdict)


def test_attempts_that_each_died_of_another_node_do_not_stop_a_chain() -> None:
    assert without_progress([of_node(number, f"n{number}") for number in range(1, 6)], NOON) == 0
    lost = [replace(ended(number, "node-failure"), lost_nodes=(f"n{number}",)) for number in range(1, 6)]
    assert without_progress(lost, NOON) == 0


def test_the_same_node_again_and_what_nobody_is_sure_of_counts() -> None:
    assert without_progress([of_node(1, "n1"), of_node(2, "n1"), of_node(3, "n2"), of_node(4, "n1")], NOON) == 2
    assert failed_too_often([of_node(number, f"n{number}", confidence=0.5) for number in (1, 2, 3)], NOON)
    assert failed_too_often([of_node(number, f"n{number}", cause=Cause.USER_CODE) for number in (1, 2, 3)], NOON)


def test_so_many_bad_nodes_in_a_row_are_no_nodes_fault() -> None:
    many = [of_node(number, f"n{number}") for number in range(1, OTHER_NODES + FAILURE_LIMIT + 1)]
    assert not failed_too_often(many[:-1], NOON) and failed_too_often(many, NOON)
    saved = ended(99, end=10)
    assert without_progress([*many, saved, of_node(100, "n100")], NOON) == 0


def test_what_a_network_names_another_node_for_each_time_stops_a_chain_as_anything_does() -> None:
    for cause in (Cause.NCCL, Cause.NETWORK):
        assert failed_too_often([of_node(number, f"n{number}", cause=cause) for number in (1, 2, 3)], NOON), cause
    for cause in (Cause.GPU_ERROR, Cause.GPU_ECC, Cause.GPU_LOST, Cause.NODE_FAILURE):
        assert not failed_too_often([of_node(number, f"n{number}", cause=cause) for number in (1, 2, 3)], NOON), cause
