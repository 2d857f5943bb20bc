"""The screen of `opsctl status`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from opsctl.core.output import json_text
from opsctl.monitoring.check import Settings
from opsctl.monitoring.overview import Overview, findings
from opsctl.monitoring.snapshot import Published, Snapshot
from opsctl.run.attempts.events import Attempt
from opsctl.run.checkpoints.inventory import Checkpoint
from opsctl.run.logs.records import Measured
from opsctl.run.state.kill_switch import KillSwitchState
from opsctl.ui.status.json_output import printed_status
from opsctl.ui.status.screen import loss_text, status_lines
from tests.facts import missing
from tests.printed_json import printed
from tests.unit.monitoring.jobs import HELD, NOW, RUNNING, WAITING_FOR_CHAIN, WAITING_FOR_TASK, pending
from tests.unit.ui.status.runs import iteration, now, opened, run
from trainer.formats.attempt.attempt_records import Failure
from trainer.recipe.save_schedule import SavePhase, SaveSchedule

HEALTHY = run(
    jobs=(RUNNING, WAITING_FOR_TASK, WAITING_FOR_CHAIN),
    published=Published("0003-ab12cd34ef56", NOW - timedelta(days=1), "ana@login"),
    measured=Measured(
        last_iteration=iteration(samples=1_024_000),
        seconds_per_iteration=105.2,
        samples_per_second=19.47,
        tflops=149.02,
    ),
    log_written_at=NOW - timedelta(seconds=61),
    total_samples=2_048_000,
    checkpoint=Checkpoint(Path("/o/checkpoints/global_step400"), 400, 819_200),
    checkpoint_at=NOW - timedelta(hours=1),
    attempts=(
        Attempt(
            number=1,
            id="a",
            job_id=11,
            array_job_id=10,
            array_task="1",
            opened_at=NOW - timedelta(hours=9),
            closed_at=NOW - timedelta(hours=4),
            reason="signal",
            iteration_at_end=400,
            first_failure=Failure(rank=37, node="iam12", exit_code=-9, signal=9),
        ),
        Attempt(
            number=2,
            id="b",
            job_id=13,
            array_job_id=12,
            array_task="1",
            opened_at=NOW - timedelta(seconds=7800),
            iteration_at_start=400,
        ),
    ),
    kill_switch=KillSwitchState(Path("/o/kill-switch"), True, False),
)


def old_answer(snapshot: Snapshot, age_s: float) -> Snapshot:
    """Return `snapshot` as if Slurm was asked `age_s` seconds ago."""
    return replace(snapshot, queue_age_s=age_s, queue_asked_at=NOW - timedelta(seconds=age_s))


def test_the_time_of_a_running_job_advances_between_two_answers_of_slurm() -> None:
    started = structs.replace(
        RUNNING, started_at=NOW - timedelta(seconds=90), ends_at=None, elapsed_s=1, time_limit_s=600
    )
    lines = status_lines(run(jobs=(started,)), [], 100, False)
    assert missing(lines[0], "RUNNING", "0:01:30", "0:08:30") == []


def test_a_job_that_was_suspended_for_a_while_has_run_for_less() -> None:
    times: dict[str, Any] = {"started_at": NOW - timedelta(seconds=90), "ends_at": NOW + timedelta(seconds=540)}
    paused = structs.replace(RUNNING, **times, elapsed_s=60, time_limit_s=600)
    assert (paused.elapsed_at_s(NOW), paused.left_at_s(NOW)) == (60, 540)
    suspended = structs.replace(paused, state="SUSPENDED")
    assert suspended.elapsed_at_s(NOW) == 60


@pytest.mark.parametrize(("age_s", "is_shown"), [(0.0, False), (4.0, False), (34.0, True)])
def test_an_answer_of_slurm_that_is_old_is_shown_with_its_age(age_s: float, is_shown: bool) -> None:
    screen = "\n".join(status_lines(replace(HEALTHY, seen=old_answer(HEALTHY.seen, age_s)), [], 100, False))
    assert ("34 s old" in screen) is is_shown


def test_an_attempt_that_opened_after_slurm_was_asked_is_not_gone() -> None:
    late = Attempt(number=1, id="z", job_id=99, opened_at=NOW - timedelta(seconds=10))
    seen = replace(HEALTHY.seen, attempts=(late,))
    for age_s, is_gone in (0, True), (30, False):
        text = "\n".join(status_lines(replace(HEALTHY, seen=old_answer(seen, age_s)), [], 100, False))
        assert (missing(text, "opsctl attempts") == []) is is_gone


def screen(overview: Overview, width: int = 100) -> str:
    return "\n".join(status_lines(overview, opened(overview), width, colour=False))


@pytest.mark.parametrize(
    ("name", "overview"),
    [
        ("running", HEALTHY),
        ("waiting", now(HEALTHY, jobs=(pending("Priority", starts_at=NOW + timedelta(hours=2)),))),
        ("held", now(HEALTHY, jobs=(HELD,))),
        (
            "finished",
            now(
                HEALTHY,
                jobs=(),
                is_finished=True,
                measured=structs.replace(HEALTHY.seen.measured, last_iteration=iteration(1000, samples=2_048_000)),
                checkpoint=Checkpoint(Path("/o/checkpoints/global_step1000"), 1000, 2_048_000),
                checkpoint_at=NOW - timedelta(seconds=40),
                attempts=(HEALTHY.seen.attempts[0],),
            ),
        ),
        (
            "stopped",
            now(
                HEALTHY,
                jobs=(),
                kill_switch=KillSwitchState(Path("/o/kill-switch"), True, True, by="eve", why="a spike"),
                published=Published("0003-ab12cd34ef56", NOW, "ana@login", ("trainer.lr", "slurm.nodes")),
            ),
        ),
        ("unknown", now(HEALTHY, jobs=(), blind="squeue: no answer")),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_screen_of_each_state(name: str, overview: Overview, golden: Callable[[str, str], None]) -> None:
    golden(f"status/{name}.txt", screen(overview) + "\n")


def test_a_critical_finding_follows_the_headline() -> None:
    lines = screen(now(HEALTHY, jobs=(HELD,))).splitlines()
    assert missing(lines[0], "demo", "HELD") == []
    assert lines[1].startswith("critical") and "JobHeldUser" in lines[1]


def test_a_blind_status_shows_the_rest_and_never_reports_an_absent_run() -> None:
    text = screen(now(HEALTHY, jobs=(), blind="squeue: no answer"))
    assert missing(text, "UNKNOWN", "jobs unknown", "iteration 500 of 1000") == []
    absent = ("RUNNING", "NOT IN THE QUEUE", "opsctl submit", "opsctl attempts")
    assert missing(text, *absent) == [*absent]
    assert [line for line in text.splitlines() if len(line.split()) < 2] == []  # no label without a value


def test_an_empty_queue_behind_a_running_task_shows_the_command_to_type() -> None:
    assert "opsctl submit --after auto" in screen(now(HEALTHY, jobs=(RUNNING,)))


def test_an_attempt_whose_job_is_gone_names_the_command_that_shows_its_end() -> None:
    text = screen(now(HEALTHY, jobs=(WAITING_FOR_CHAIN,)))
    assert missing(text, "demo WAITING", "opsctl attempts") == []


def test_a_fresh_run_shows_no_empty_rows() -> None:
    fresh = Overview("demo", "t", Path("/o"), Snapshot(NOW))
    assert [line.split()[0] for line in screen(fresh).splitlines()] == ["demo", "queue", "kill", "revision", "output"]


def test_an_edited_run_file_shows_the_keys_that_differ() -> None:
    edited = Published("0003-ab12cd34ef56", NOW, "ana@login", ("trainer.lr", "slurm.nodes"))
    assert missing(screen(now(HEALTHY, published=edited)), "opsctl revise", "trainer.lr", "slurm.nodes") == []


def test_a_waiting_run_shows_its_expected_start() -> None:
    job = pending("Priority", starts_at=NOW + timedelta(hours=2))
    headline = screen(now(HEALTHY, jobs=(job,))).splitlines()[0]
    assert missing(headline, "WAITING", "2:00:00", "2026-03-01T12:00+00:00") == []


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_longer_than_the_screen(width: int) -> None:
    crowded = now(HEALTHY, jobs=(RUNNING, *[structs.replace(HELD, job_id=n, array_job_id=n) for n in range(50, 60)]))
    text = screen(crowded, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert missing(text, "6 more", "opsctl queue") == []


def test_a_running_job_that_has_logged_nothing_is_starting() -> None:
    assert "starting" in screen(run(jobs=(RUNNING,)))
    assert "starting" not in screen(run(jobs=(WAITING_FOR_TASK,))) + screen(HEALTHY)


def test_colour_changes_no_word() -> None:
    plain = status_lines(HEALTHY, [], 100, colour=False)
    painted = status_lines(HEALTHY, [], 100, colour=True)
    assert "\x1b[1;32mRUNNING" in painted[0]
    for code in ("1", "1;32"):
        painted = [line.replace(f"\x1b[{code}m", "") for line in painted]
    assert [line.replace("\x1b[0m", "") for line in painted] == plain


def test_control_characters_in_what_others_wrote_do_not_reach_the_terminal() -> None:
    switch = KillSwitchState(Path("/o/kill-switch"), True, True, by="\x1b[2Jeve")
    assert "\x1b" not in screen(replace(now(HEALTHY, kill_switch=switch), name="de\x1b[2Jmo"))


def test_programs_get_the_same_with_units_in_the_names() -> None:
    value = printed("status", json_text("status", printed_status(HEALTHY, opened(HEALTHY))))
    assert value["state"] == "running" and value["job"]["id"] == "12_1" and value["findings"] == []
    assert [job["id"] for job in value["queue"]] == ["12_[2-3%1]", "20_[1-3%1]"]
    assert value["loss"] == {
        "iteration": 500,
        "lm_loss": 2.5,
        "logged_by": "2026-03-01T09:58:59+00:00",
        "age_s": 61.0,
        "age_is_a_minimum": False,
    }
    assert value["progress"]["total_samples"] == 2_048_000


def test_programs_are_told_that_the_queue_is_unknown() -> None:
    blind = now(HEALTHY, jobs=(), blind="no answer")
    value = printed_status(blind, opened(blind))
    assert (value.state, value.queue, value.slurm_problem) == ("unknown", None, "no answer")


def test_an_attempt_is_running_for_programs_only_where_slurm_has_its_job() -> None:
    mine = Attempt(number=1, id="a", job_id=RUNNING.job_id)
    gone = Attempt(number=2, id="b", job_id=999)
    ended = Attempt(number=3, id="c", job_id=998, reason="stop-request")
    all_three = now(HEALTHY, attempts=(mine, gone, ended))
    assert [one.state for one in printed_status(all_three, []).attempts] == ["running", "not known", "ended"]
    blind = now(all_three, jobs=(), blind="no answer")
    assert [one.state for one in printed_status(blind, []).attempts] == ["not known", "not known", "ended"]


def test_a_line_that_was_cut_short_has_no_loss_instead_of_nan() -> None:
    def shown(nan_iterations: int | None) -> str:
        last = structs.replace(iteration(), loss=None, nan_iterations=nan_iterations)
        measured = structs.replace(HEALTHY.seen.measured, last_iteration=last)
        return loss_text(now(HEALTHY, measured=measured).seen)

    assert missing(shown(1), "not a number", "iteration 500") == []
    assert "not a number" not in shown(None) and "iteration 500" in shown(None)


def test_a_loss_that_is_no_number_is_null_for_programs() -> None:
    measured = HEALTHY.seen.measured
    assert measured.last_iteration is not None
    last = structs.replace(measured.last_iteration, loss=math.nan)
    lost = now(HEALTHY, measured=structs.replace(measured, last_iteration=last))
    assert printed("status", json_text("status", printed_status(lost, [])))["loss"]["lm_loss"] is None


def test_the_kill_switch_in_the_json_of_status_has_its_usual_form() -> None:
    switch = KillSwitchState(Path("/o/kill-switch"), True, True, by="ann", why="a spike")
    shown = printed("status", json_text("status", printed_status(now(HEALTHY, kill_switch=switch), [])))
    assert shown["kill_switch"]["why"] == "a spike" and missing(shown["kill_switch"]["story"], "ann", "a spike") == []


def test_a_stalled_training_has_no_speed_and_no_expected_end() -> None:
    settings = Settings("demo", "the team", saves=SaveSchedule((SavePhase(100),)), evaluates_every=0)
    fast = Measured(last_iteration=iteration(511), seconds_per_iteration=0.01, samples_per_second=1600.0)
    goes_on = replace(now(HEALTHY, measured=fast, log_written_at=NOW - timedelta(seconds=5)), settings=settings)
    assert "0.01 s/iteration" in screen(goes_on) and goes_on.left_s is not None
    still = now(goes_on, log_written_at=NOW - timedelta(minutes=7))
    assert missing(screen(still), "7 min", "0.01 s") == [] and "s/iteration" not in screen(still)
    assert still.left_s is None and still.finishes_at is None
    (found,) = (one for one in findings(still, settings) if one.check == "silence")
    assert missing(found.text, "7 min", "0.01 s") == []
