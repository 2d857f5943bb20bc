from __future__ import annotations

from datetime import UTC, datetime

import pytest

from opsctl.diagnosis.nodes.ends import ends_of
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import Verdict
from trainer.formats.attempt.attempt_records import Failure

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
KILLED = Failure(rank=3, node="n2", signal=9)
RAISED = Failure(rank=3, node="n2", exit_code=1, message="ValueError: bad shape")


def ended(
    reason: str, first: Failure | None = None, verdict: Verdict | None = None, lost: tuple[str, ...] = ()
) -> Attempt:
    return Attempt(
        number=4,
        id="12-ab",
        job_id=12,
        nodes=("n1", "n2"),
        closed_at=NOON,
        reason=reason,
        first_failure=first,
        lost_nodes=lost,
        verdict=verdict,
    )


@pytest.mark.parametrize(
    ("attempt", "blamed"),
    [
        (ended("signal", KILLED), set()),  # a person may have sent it
        (ended("node-failure", lost=("n1",)), {"n1"}),
        (ended("failed", RAISED), set()),  # nobody says whose fault it was
        (ended("failed", RAISED, Verdict(cause="gpu-ecc", node="n2")), {"n2"}),
        (ended("failed", RAISED, Verdict(cause="unknown", node="n2")), set()),  # as without a verdict
        (ended("signal", KILLED, Verdict(cause="unknown", node="n2")), set()),
        (ended("signal", KILLED, Verdict(cause="gpu-lost", node="n1")), {"n1"}),
        (ended("hang", verdict=Verdict(cause="hang", node="n2")), set()),  # the program's own may be as well
        (ended("failed", RAISED, Verdict(cause="nccl", node="n2")), set()),
        (ended("node-failure", lost=("n1",), verdict=Verdict(cause="unknown", node="n2")), {"n1"}),
        (ended("failed", RAISED, Verdict(cause="disk-full", node="n2")), set()),
        (ended("failed", RAISED, Verdict(cause="user-code", node="n2", user_fault=True)), set()),
        (ended("signal", KILLED, Verdict(cause="host-oom", node="n2", user_fault=True)), set()),
        (ended("signal", KILLED, Verdict(cause="diverged", node="n2")), set()),
        (ended("signal", Failure(rank=0, node="n1", signal=15)), set()),  # that is how others are ended
        (ended("cancelled", KILLED), set()),
        (ended("preempted", KILLED), set()),
        (ended("exit-duration"), set()),
    ],
)
def test_a_bad_end_blames_a_node_for_its_hardware_alone(attempt: Attempt, blamed: set[str]) -> None:
    (end,) = ends_of([attempt])
    assert end.blamed == blamed and bool(end.words) == bool(blamed)


def test_what_has_not_ended_says_nothing() -> None:
    assert ends_of([Attempt(number=1, id="1", job_id=1, nodes=("n1",))]) == []
