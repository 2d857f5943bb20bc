from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from opsctl.core.files.state_files import append_state
from opsctl.core.timestamps import now
from opsctl.monitoring.checks.training import no_progress, training
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.runner import gather, settings_of
from opsctl.monitoring.snapshot import Part
from opsctl.run.attempts.events import Attempt, append_closed, append_opened
from opsctl.run.state.chains import REFILL, SUBMIT, Cancel, Chain, append_chain
from opsctl.run.state.kill_switch import Deactivation
from opsctl.run.state.run_view import view
from tests.tiny_run import write_checkpoint, write_run
from tests.unit.monitoring.run_folder import slurm


def test_what_refill_submits_does_not_set_the_brakes_count_back(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path)))
    run.paths.state.mkdir(parents=True)
    begin = now() - timedelta(hours=9)

    def submitted(number: int, hour: int, how: str) -> None:
        at = begin + timedelta(hours=hour)
        append_chain(run.paths, Chain(chain=number, submitted_at=at, user="ann", array="1-3%1", how=how))

    def failed(number: int, hour: int) -> None:
        at = begin + timedelta(hours=hour)
        attempt = Attempt(number=number, id=str(number), job_id=number, opened_at=at, closed_at=at, reason="exit")
        append_opened(run.paths, attempt)
        append_closed(run.paths, attempt)

    submitted(20, 0, SUBMIT)
    failed(1, 1)
    failed(2, 2)
    submitted(21, 3, REFILL)
    failed(3, 4)
    assert gather(run, slurm([]), Part.ATTEMPTS).attempts_without_progress == 3
    submitted(22, 5, SUBMIT)
    assert gather(run, slurm([]), Part.ATTEMPTS).attempts_without_progress == 0


MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("queued_only", "job", "reason", "ended_after", "is_missed"),
    [
        (False, "12_1", "cancelled", MINUTE, False),
        (False, "12_1", None, None, False),  # its end is not on record yet
        (False, "12_2", "signal", 5 * MINUTE, False),  # of the same array, it had just started
        (False, "13_1", "signal", -HOUR, False),  # it had ended before
        (False, "13_1", "signal", DAY, True),  # a colleague's chain, which was not cancelled
        (False, "13_1", None, None, True),
        (True, "12_1", "time-limit", DAY, False),
        (True, "12_1", "finished", DAY, False),
        (True, "12_1", "signal", DAY, True),
        (True, "12_1", "node-failure", DAY, True),
        (True, "12_1", None, None, True),
        (True, "12_1", "signal", -HOUR, False),
    ],
)
def test_a_training_that_continued_after_a_cancel_and_then_died_is_missed(
    tmp_path: Path, queued_only: bool, job: str, reason: str | None, ended_after: timedelta | None, is_missed: bool
) -> None:
    run = view(str(write_run(tmp_path)))
    run.paths.state.mkdir(parents=True)
    at = now() - 2 * DAY
    for chain in (12, 13):
        append_chain(run.paths, Chain(chain=chain, submitted_at=at - DAY, user="ann", array="1-3%1", how=SUBMIT))
    array, _, task = job.partition("_")
    attempt = Attempt(
        number=1, id="a", job_id=900, array_job_id=int(array), array_task=task, opened_at=at - DAY, user="ann"
    )
    append_opened(run.paths, attempt)
    if ended_after is not None:
        append_closed(run.paths, structs.replace(attempt, closed_at=at + ended_after, reason=reason))
    jobs = ("12_[2-3%1]",) if queued_only else ("12_1", "12_[2-3%1]")
    append_state(
        run.paths.output, run.paths.cancels, Cancel(at=at, by="ann", jobs=jobs, queued_only=queued_only, chains=2)
    )
    (finding,) = training.find(gather(run, slurm([]), training.needs), settings_of(run))
    assert finding.severity is (Severity.CRITICAL if is_missed else Severity.WARNING)


@pytest.mark.parametrize(
    ("reason", "ended_after", "submits_again", "is_missed"),
    [
        ("kill-switch", -MINUTE, False, False),
        ("kill-switch", 5 * MINUTE, False, False),  # its last save took longer than the switch was there
        ("signal", -HOUR, False, False),  # it had ended before
        ("signal", HOUR, False, True),
        ("kill-switch", -MINUTE, True, True),  # what was submitted since is gone too
        (None, None, False, True),
    ],
)
def test_a_training_that_the_kill_switch_stopped_is_not_missed_after_it_was_deactivated(
    tmp_path: Path, reason: str | None, ended_after: timedelta | None, submits_again: bool, is_missed: bool
) -> None:
    run = view(str(write_run(tmp_path)))
    run.paths.state.mkdir(parents=True)
    at = now() - 2 * HOUR
    append_chain(run.paths, Chain(chain=12, submitted_at=at - DAY, user="ann", array="1-3%1", how=SUBMIT))
    attempt = Attempt(number=1, id="a", job_id=900, array_job_id=12, array_task="1", opened_at=at - DAY, user="ann")
    append_opened(run.paths, attempt)
    if ended_after is not None:
        append_closed(run.paths, structs.replace(attempt, closed_at=at + ended_after, reason=reason))
    append_state(run.paths.output, run.paths.kill_switch_log, Deactivation(at=at, by="ben", triggered_at=at - HOUR))
    if submits_again:
        append_chain(run.paths, Chain(chain=13, submitted_at=at + HOUR, user="ann", array="1-3%1", how=SUBMIT))
    (finding,) = training.find(gather(run, slurm([]), training.needs), settings_of(run))
    assert finding.severity is (Severity.CRITICAL if is_missed else Severity.WARNING)
    assert is_missed or ("ben" in finding.text and finding.todo.startswith("opsctl submit"))


def test_a_checkpoint_of_the_running_attempt_ends_the_row_without_progress(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path)))
    run.paths.state.mkdir(parents=True)
    begin = now() - 9 * HOUR
    append_chain(run.paths, Chain(chain=20, submitted_at=begin, user="ann", array="1-3%1", how=SUBMIT))
    for number in (1, 2, 3):
        at = begin + number * HOUR
        attempt = Attempt(number=number, id=str(number), job_id=number, opened_at=at, iteration_at_start=4)
        append_opened(run.paths, attempt)
        if number < 3:
            append_closed(run.paths, structs.replace(attempt, closed_at=at + MINUTE, reason="exit"))
    assert gather(run, slurm([]), no_progress.needs).attempts_without_progress == 2
    write_checkpoint(tmp_path, 4, 32)
    assert gather(run, slurm([]), no_progress.needs).attempts_without_progress == 2
    write_checkpoint(tmp_path, 8, 64)
    seen = gather(run, slurm([]), no_progress.needs)
    assert seen.attempts_without_progress == 0 and no_progress.find(seen, settings_of(run)) == []
