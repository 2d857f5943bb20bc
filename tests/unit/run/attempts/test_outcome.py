"""Why an attempt ended, by all evidence."""

from __future__ import annotations

import re
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.outcome import Evidence, LauncherExit, StepEnd, closed, reason_of
from opsctl.run.checkpoints.inventory import Checkpoint
from trainer.formats.attempt.attempt_records import Failure

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
KILLED = Failure(rank=3, node="x02", signal=signal.SIGKILL, failed_at=NOON)
RAISED = Failure(rank=3, node="x02", exit_code=4, failed_at=NOON, message="ValueError: no")
NOTHING = Evidence()


@pytest.mark.parametrize(
    ("step", "evidence", "reason"),
    [
        (StepEnd(0), Evidence(exit_reason="finished"), "finished"),
        (StepEnd(0), Evidence(exit_reason="kill-switch"), "kill-switch"),
        # Ended hard a minute after it reported that it leaves.
        (StepEnd(137), Evidence(exit_reason="kill-switch"), "kill-switch"),
        (StepEnd(143), Evidence(failures=(KILLED,)), "signal"),
        (StepEnd(143), Evidence(failures=(RAISED,)), "failed"),
        (StepEnd(1), NOTHING, "failed"),
        (StepEnd(139), NOTHING, "signal"),
        # A launcher failed before any rank began; srun's own code is that of the others, which it ended.
        (StepEnd(143, first_exit=LauncherExit("x02", 1)), NOTHING, "failed"),
        (StepEnd(143, first_exit=LauncherExit("x02", 137)), NOTHING, "signal"),
        (StepEnd(143, first_exit=LauncherExit("x02", 1)), Evidence(failures=(KILLED,)), "signal"),
        (StepEnd(0), NOTHING, "completed"),
        (StepEnd(143, was_asked_to_end=True, limit_reached=True), NOTHING, "time-limit"),
        (StepEnd(143, was_asked_to_end=True), NOTHING, "cancelled"),
        (StepEnd(143, was_asked_to_end=True, slurm_state="PREEMPTED"), NOTHING, "preempted"),
        (StepEnd(143, was_asked_to_end=True, lost_nodes=("x02",)), NOTHING, "node-failure"),
        (StepEnd(None, slurm_state="NODE_FAIL"), Evidence(failures=(KILLED,)), "node-failure"),
        # Slurm ended the ranks of the other nodes with SIGTERM, and they could save.
        (StepEnd(143, lost_nodes=("x02",)), Evidence(exit_reason="stop-request"), "node-failure"),
        (StepEnd(143, lost_nodes=("x02",)), Evidence(exit_reason="finished"), "finished"),
        (StepEnd(None, slurm_state="TIMEOUT"), NOTHING, "time-limit"),
        (StepEnd(None, slurm_state="CANCELLED"), NOTHING, "cancelled"),
        (StepEnd(None, slurm_state="OUT_OF_MEMORY"), NOTHING, "out-of-memory"),
        (StepEnd(None, slurm_state="REQUEUED"), NOTHING, "requeued"),
        (StepEnd(None, slurm_state="LOST"), NOTHING, "unknown"),
        # The batch process was killed after the ranks had left properly.
        (StepEnd(137, slurm_state="FAILED"), Evidence(exit_reason="exit-duration"), "exit-duration"),
        # A stop request of a person is the reason, one that was only a SIGTERM is not.
        (StepEnd(143), Evidence(exit_reason="stop-request", stop_requested=True), "stop-request"),
        # One that Slurm's warning made is the limit's: the trainer left in time for it, as by its own clock.
        (
            StepEnd(0, limit_warned=True),
            Evidence(exit_reason="stop-request", stop_requested=True),
            "exit-duration",
        ),
        (StepEnd(0, limit_warned=True), Evidence(exit_reason="kill-switch"), "kill-switch"),
        (StepEnd(143, was_asked_to_end=True, limit_reached=True, limit_warned=True), NOTHING, "time-limit"),
        (StepEnd(137, slurm_state="FAILED"), Evidence(exit_reason="stop-request"), "signal"),
        (StepEnd(143, slurm_state="CANCELLED"), Evidence(exit_reason="stop-request"), "cancelled"),
        # The job records a SIGTERM as a stop request too: scancel is the reason, whichever the ranks saw first.
        (
            StepEnd(143, was_asked_to_end=True, slurm_state="CANCELLED"),
            Evidence(exit_reason="stop-request", stop_requested=True),
            "cancelled",
        ),
        (
            StepEnd(143, was_asked_to_end=True),
            Evidence(exit_reason="stop-request", stop_requested=True),
            "cancelled",
        ),
        (
            StepEnd(143, was_asked_to_end=True, limit_reached=True, slurm_state="TIMEOUT"),
            Evidence(exit_reason="stop-request", stop_requested=True),
            "stop-request",
        ),
        (StepEnd(0), Evidence(exit_reason="stop-request"), "stop-request"),
        (StepEnd(137, slurm_state="FAILED"), NOTHING, "signal"),
    ],
)
def test_the_reason_is_the_trainers_word_then_slurms_then_the_launchers(
    step: StepEnd, evidence: Evidence, reason: str
) -> None:
    assert reason_of(step, evidence) == reason


@pytest.mark.parametrize(
    ("srun", "cause", "exit_code", "ended_by"),
    [
        (143, KILLED, 137, 9),  # srun's 143 only shows that it ended the others
        (143, RAISED, 4, None),
        (1, KILLED, 137, 9),
        (7, None, 7, None),
        (137, None, 137, 9),
        (0, None, 0, None),
        (0, RAISED, 0, None),
        (None, None, None, None),
    ],
)
def test_the_exit_code_is_the_causes_own(
    srun: int | None, cause: Failure | None, exit_code: int | None, ended_by: int | None
) -> None:
    evidence = Evidence(failures=(cause,) if cause else ())
    ended = closed(Attempt(number=1, id="a", job_id=1), StepEnd(srun), evidence, None, NOON)
    assert (ended.exit_code, ended.signal) == (exit_code, ended_by)


def test_a_launcher_that_failed_before_its_ranks_is_named_with_its_own_exit_code() -> None:
    step = StepEnd(143, first_exit=LauncherExit("x02", 1))
    ended = closed(Attempt(number=1, id="a", job_id=1), step, NOTHING, None, NOON)
    assert (ended.exit_code, ended.signal) == (1, None)
    assert re.search(r"\bx02\b.*\b1\b", ended.note)


def test_the_last_iteration_is_the_reported_one_else_the_logged_one_else_the_checkpoints() -> None:
    checkpoint = Checkpoint(Path("/c"), 40, 400)

    def last(evidence: Evidence) -> int | None:
        return closed(Attempt(number=1, id="a", job_id=1), StepEnd(0), evidence, checkpoint, NOON).iteration_at_end

    assert last(Evidence(exit_iteration=60, logged_iteration=59)) == 60
    assert last(Evidence(exit_iteration=0, logged_iteration=59)) == 0
    assert last(Evidence(logged_iteration=59)) == 59
    assert last(Evidence()) == 40
    assert closed(Attempt(number=1, id="a", job_id=1), StepEnd(0), NOTHING, checkpoint, NOON).checkpoint_at_end == 40
