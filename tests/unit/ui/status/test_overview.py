"""State, progress and findings that follow from a snapshot of a run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from opsctl.monitoring.finding import Severity
from opsctl.monitoring.overview import findings
from opsctl.monitoring.snapshot import Published, Snapshot
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.hidden_jobs import Unseen
from opsctl.run.checkpoints.inventory import Checkpoint
from opsctl.run.logs.records import Measured
from opsctl.run.state.kill_switch import KillSwitchState
from opsctl.run.state.lease import Seen
from opsctl.slurm.types import Job
from opsctl.ui.status.json_output import PrintedUnseen, printed_status
from opsctl.ui.status.screen import status_lines
from tests.facts import missing
from tests.unit.monitoring.jobs import HELD, NEVER, NOW, RUNNING, WAITING_FOR_CHAIN, WAITING_FOR_TASK
from tests.unit.ui.status.runs import iteration, now, opened, run
from trainer.formats.attempt.lease import Holder

OPEN = Attempt(number=1, id="a", job_id=13, array_job_id=12, array_task="1", user="bob", opened_at=NOW)


@pytest.mark.parametrize(
    ("jobs", "state"),
    [
        ((), "absent"),
        ((RUNNING, WAITING_FOR_TASK), "running"),
        (
            (structs.replace(RUNNING, state="COMPLETING"), structs.replace(RUNNING, job_id=99, state="RUNNING")),
            "running",
        ),
        ((structs.replace(RUNNING, state="COMPLETING"), WAITING_FOR_TASK), "completing"),
        ((structs.replace(RUNNING, state="CONFIGURING"),), "configuring"),
        ((structs.replace(RUNNING, state="SUSPENDED"), WAITING_FOR_TASK), "suspended"),
        ((WAITING_FOR_TASK, HELD), "waiting"),
        ((HELD, NEVER), "held"),
        ((HELD, RUNNING), "running"),
    ],
)
def test_the_state_is_that_of_what_matters_most(jobs: tuple[Job, ...], state: str) -> None:
    assert run(jobs=jobs).state == state


def test_a_blind_status_knows_no_state() -> None:
    assert run(blind="no answer").state == "unknown"


def test_a_finished_training_is_finished_also_for_the_blind() -> None:
    assert run(is_finished=True).state == "finished"
    assert run(is_finished=True, blind="no answer").state == "finished"


def test_a_run_whose_jobs_may_be_hidden_is_unknown_not_absent() -> None:
    hidden = run(unseen=(Unseen(12, "bob", runs_since_attempt=1),), attempts=(OPEN,))
    assert (hidden.state, findings(hidden)) == ("unknown", [])
    text = "\n".join(status_lines(hidden, [], 100, colour=False))
    assert missing(text, "UNKNOWN", "chain 12 of bob", "1: 12_1") == []
    absent = ("NOT IN THE QUEUE", "opsctl submit", "opsctl attempts")
    assert missing(text, *absent) == [*absent]
    told = printed_status(hidden, [])
    assert told.unseen == [PrintedUnseen(array_job_id=12, user="bob")]
    assert [attempt.state for attempt in told.attempts] == ["not known"]
    assert printed_status(now(hidden, blind="no answer"), []).unseen is None


def test_an_attempt_that_holds_the_lease_is_not_gone_if_this_queue_lacks_its_job() -> None:
    lease = Seen(Holder(1, OPEN.id, OPEN.job_id, "bob", "x9"), 5.0)
    text = "\n".join(status_lines(run(attempts=(OPEN,), lease=lease), [], 100, colour=False))
    assert missing(text, "1: 12_1", "opsctl attempts") == ["opsctl attempts"]


def test_hidden_jobs_are_shown_next_to_the_state_of_visible_ones() -> None:
    running = run(jobs=(RUNNING,), unseen=(Unseen(12, "bob"),))
    assert running.state == "running"
    text = "\n".join(status_lines(running, [], 100, colour=False))
    assert missing(text, "chain 12 of bob", "opsctl submit") == ["opsctl submit"]


def test_a_run_that_was_never_submitted_is_not_missed() -> None:
    fresh = run(was_submitted=False)
    assert fresh.state == "unsubmitted" and findings(fresh) == []


def test_progress_counts_samples_where_the_training_does() -> None:
    known = run(measured=Measured(last_iteration=iteration()), total_samples=64000)
    assert (known.share, known.iterations_in_all) == (0.25, 1000)


def test_progress_counts_iterations_where_the_training_does() -> None:
    assert run(measured=Measured(last_iteration=iteration())).share == 0.5


def test_without_a_log_the_checkpoint_says_how_far_it_is() -> None:
    known = run(checkpoint=Checkpoint(Path("/c"), 40, 1280), total_samples=5120, total_iterations=None)
    assert (known.iteration, known.samples, known.share) == (40, 1280, 0.25)


def test_what_is_left_follows_the_samples_and_is_a_date_only_while_it_runs() -> None:
    measured = Measured(last_iteration=iteration(), samples_per_second=16.0, seconds_per_iteration=99.0)
    running = run(measured=measured, total_samples=64000, jobs=(RUNNING,))
    assert running.left_s == 3000.0  # (64000 - 16000) / 16
    assert running.finishes_at == NOW + timedelta(seconds=3000)
    assert now(running, jobs=(WAITING_FOR_TASK,)).finishes_at is None


def test_what_is_left_follows_the_iterations_where_samples_are_not_counted() -> None:
    measured = Measured(last_iteration=iteration(samples=None), seconds_per_iteration=2.0)
    assert run(measured=measured).left_s == 1000.0  # (1000 - 500) * 2


def test_a_loss_is_as_old_as_the_log_unless_something_came_after_it() -> None:
    last = Measured(last_iteration=iteration())
    known = Snapshot(NOW, measured=last, log_written_at=NOW - timedelta(minutes=1))
    assert known.last_logged_at == NOW - timedelta(minutes=1) and not known.is_loss_age_a_minimum
    stamped = replace(known, measured=structs.replace(last, stamped_after_it=NOW - timedelta(hours=2)))
    assert stamped.last_logged_at == NOW - timedelta(hours=2) and stamped.is_loss_age_a_minimum
    followed = replace(known, measured=structs.replace(last, is_followed=True))
    assert followed.last_logged_at == NOW - timedelta(minutes=1) and followed.is_loss_age_a_minimum
    ahead = replace(known, measured=structs.replace(last, stamped_after_it=NOW + timedelta(hours=1)))
    assert ahead.last_logged_at == NOW - timedelta(minutes=1), (
        "a clock that runs ahead makes nothing younger than the log"
    )


def test_a_held_chain_is_found_and_so_is_an_empty_queue() -> None:
    assert [(one.severity, one.alert) for one in findings(run(jobs=(HELD,)))] == [(Severity.CRITICAL, "the team")]
    assert [one.key for one in findings(run())] == ["training:absent"]


def test_a_healthy_run_has_no_findings() -> None:
    assert findings(run(jobs=(RUNNING, WAITING_FOR_TASK, WAITING_FOR_CHAIN))) == []


def test_a_blind_status_finds_nothing_about_the_queue() -> None:
    assert findings(run(blind="no answer")) == []


def test_the_worst_finding_comes_first() -> None:
    found = findings(run(jobs=(HELD,), published=Published("0001-abc", NOW, "ana@login", ("trainer.lr",))))
    assert [one.severity for one in found] == [Severity.CRITICAL, Severity.WARNING]


def test_all_that_is_wrong_is_shown_the_worst_first_and_else_in_one_order() -> None:
    trouble = run(
        jobs=(RUNNING, HELD),
        measured=Measured(last_iteration=iteration(), seconds_per_iteration=2.0),
        log_written_at=NOW - timedelta(hours=1),
        attempts_without_progress=2,
        kill_switch=KillSwitchState(Path("/o/kill-switch"), True, True),
        published=Published("0001-abc", NOW, "ana@login", ("trainer.lr",)),
    )
    checks = ["training", "silence", "no_progress", "kill_switch", "unpublished"]
    assert [one.check for one in findings(trouble)] == checks
    assert {one.severity for one in findings(trouble)} == {Severity.WARNING}
    assert [one.check for one in findings(now(trouble, blind="no answer", jobs=()))] == checks[2:]


def test_a_run_with_a_living_writer_outside_the_queue_is_unknown_not_absent() -> None:
    lease = Seen(Holder(4, "a", 99, "ben", "x7"), 5.0)
    overview = run(lease=lease)
    assert overview.state == "unknown" and run(lease=Seen(lease.holder, 100.0)).state == "absent"
    lines = status_lines(overview, opened(overview), 100, colour=False)
    assert "UNKNOWN" in lines[0]
    (writer,) = (line for line in lines if line.startswith("writer "))
    assert missing(writer, "job 99", "ben", "x7", "lease 4", "5 s ago") == []
    printed = printed_status(overview, []).lease
    assert printed is not None and (printed.job_id, printed.heartbeat_age_s, printed.is_in_queue) == (99, 5.0, False)


def test_after_a_rollback_the_training_stands_at_its_checkpoint_not_where_the_log_ends() -> None:
    measured = Measured(last_iteration=iteration(), samples_per_second=16.0)
    saved = Checkpoint(Path("/o/checkpoints/global_step40"), 40, 1280)
    ended = structs.replace(OPEN, closed_at=NOW, reason="kill-switch")
    back = run(measured=measured, checkpoint=saved, total_samples=64000, attempts=(ended,))
    assert (back.iteration, back.samples, back.left_s) == (40, 1280, (64000 - 1280) / 16)
    begun = structs.replace(OPEN, opened_at=NOW)
    loading = now(back, attempts=(ended, begun), log_written_at=NOW - timedelta(seconds=5))
    assert (loading.iteration, loading.samples) == (40, 1280)
    trains = now(back, attempts=(ended, begun), log_written_at=NOW + timedelta(seconds=5))
    assert (trains.iteration, trains.samples, trains.left_s) == (500, 16000, (64000 - 16000) / 16)
