"""The watchdog's lines for each state of a training's jobs, and their severity."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.training import training
from opsctl.monitoring.finding import Severity, exit_code
from opsctl.monitoring.overview import Overview
from opsctl.monitoring.runner import pulse_lines
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.attempts.hidden_jobs import Unseen
from opsctl.run.checkpoints.inventory import Checkpoint
from opsctl.run.logs.pulse import parse_pulse
from opsctl.run.logs.records import Alert, Pulse
from opsctl.run.state.chains import Cancel
from opsctl.run.state.kill_switch import KillSwitchState
from opsctl.slurm.states import PHASES, Phase
from opsctl.slurm.types import Job
from opsctl.ui.status.next_steps import steps_for
from opsctl.ui.status.screen import headline
from tests.facts import missing
from tests.unit.monitoring.jobs import HELD, NEVER, NOW, RUNNING, WAITING_FOR_CHAIN, WAITING_FOR_TASK, pending

SETTINGS = Settings("tr11-176B-ml", "Eng WG")
BOBS = Unseen(12, "bob")
END = Checkpoint(Path("/o/checkpoints/global_step160"), 160, 5120)


@pytest.fixture(autouse=True)
def paris(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stamps are local time: a fixed zone an hour from UTC."""
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def said(
    *jobs: Job,
    end: Checkpoint | None = None,
    blind: str | None = None,
    unseen: tuple[Unseen, ...] = (),
    was_submitted: bool = True,
) -> tuple[int, list[str]]:
    """Return the exit code and the lines for these jobs of a training that is finished with the checkpoint `end`."""
    snapshot = Snapshot(NOW, jobs, blind, was_submitted, unseen, checkpoint=end, is_finished=end is not None)
    findings = training.find(snapshot, SETTINGS)
    lines = pulse_lines(findings, NOW)
    return exit_code(findings), [
        line.removeprefix("[2026-03-01 11:00:00] PULSE: ").removesuffix(" [+01:00]") for line in lines
    ]


CANCEL = Cancel(at=NOW - timedelta(minutes=5), by="ann", jobs=("12_1",))
TRIGGERED = KillSwitchState(
    path=Path("/o/kill-switch"), is_triggered=True, is_armed=True, by="bob", at=NOW - timedelta(hours=1)
)


@pytest.mark.parametrize(("stop", "who"), [({"cancelled": CANCEL}, "ann"), ({"kill_switch": TRIGGERED}, "bob")])
def test_nobody_is_called_for_a_training_that_a_person_stopped(stop: dict[str, object], who: str) -> None:
    snapshot = Snapshot(NOW, was_submitted=True, **stop)  # type: ignore[arg-type]
    (finding,) = training.find(snapshot, SETTINGS)
    assert finding.severity is Severity.WARNING and finding.alert is None and who in finding.text
    (line,) = pulse_lines([finding], NOW)
    read = parse_pulse(line)
    assert isinstance(read, Pulse) and read.state == "rests"
    overview = Overview("tr1", "us", Path("/o"), snapshot)
    assert overview.state == "absent" and who in headline(overview)
    assert "opsctl triage" not in [step.command for step in steps_for(overview, [])]
    # What waits for no person is still missed while something is in the queue that only a person can start.
    (held,) = training.find(replace(snapshot, jobs=(HELD,)), SETTINGS)
    assert held.severity is Severity.CRITICAL


def test_a_running_training_is_said_in_the_known_words_with_its_parentheses_closed() -> None:
    assert said(RUNNING) == (
        0,
        ["tr11-176B-ml is running for 2:10:05 since 2026-03-01T08:49:55 (12_1 on 'gpu_p5' partition (node[1-4]))"],
    )


def test_the_rest_of_an_array_waits_for_the_task_before_it() -> None:
    words = "is waiting for the previous Job Array job to finish before scheduling a new one"
    assert said(WAITING_FOR_TASK) == (0, [f"tr11-176B-ml {words} (12_[2-3%1] on 'gpu_p5' partition)"])


def test_a_chain_waits_for_the_one_before_it() -> None:
    words = "is waiting for the previous job to finish before scheduling a new one using the dependency mechanism"
    assert said(WAITING_FOR_CHAIN) == (0, [f"tr11-176B-ml {words} (20_[1-3%1] on 'gpu_p5' partition)"])


@pytest.mark.parametrize("reason", ["Priority", "Resources", "None", "QOSMaxJobsPerUserLimit"])
def test_without_an_expected_start_it_waits_to_be_scheduled(reason: str) -> None:
    assert said(pending(reason)) == (0, ["tr11-176B-ml is waiting to be scheduled (12_[2-3%1] on 'gpu_p5' partition)"])


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (timedelta(minutes=5, seconds=7), "0:05:07 (at 2026-03-01T11:05:07)"),
        (timedelta(days=1, hours=2), "1 day, 2:00:00 (at 2026-03-02T13:00:00)"),
        (timedelta(days=3), "3 days, 0:00:00 (at 2026-03-04T11:00:00)"),
        (timedelta(seconds=-20), "0:00:00 (at 2026-03-01T10:59:40)"),
    ],
)
def test_with_an_expected_start_it_says_in_what_time(ahead: timedelta, words: str) -> None:
    assert said(pending("Resources", starts_at=NOW + ahead)) == (
        0,
        [f"tr11-176B-ml is scheduled to start in {words} (12_[2-3%1] on 'gpu_p5' partition)"],
    )


@pytest.mark.parametrize(
    ("job", "facts"),
    [
        (HELD, ("held", "JobHeldUser", "30_[1-3%1]")),
        (pending("JobHeldAdmin", 30), ("held", "JobHeldAdmin", "30_[2-3%1]")),
        (structs.replace(RUNNING, state="REQUEUE_HOLD"), ("held", "REQUEUE_HOLD", "12_1")),
        (pending("launch_failed_requeued_held"), ("held", "launch_failed_requeued_held", "12_[2-3%1]")),
        (NEVER, ("dependency", "never", "40_[1-3%1]")),
        (pending("BadConstraints"), ("BadConstraints", "12_[2-3%1]")),
    ],
)
def test_a_job_that_only_a_person_can_start_is_a_critical_alert(job: Job, facts: tuple[str, ...]) -> None:
    code, (line,) = said(job)
    assert code == 2 and missing(line, *facts, "'gpu_p5'") == []
    assert line.startswith("***ALERT: tr11-176B-ml ") and line.endswith("! Alert someone at Eng WG***")


def test_what_is_held_behind_a_running_task_is_a_warning() -> None:
    code, lines = said(HELD, RUNNING)
    assert code == 1
    assert lines[0].startswith("tr11-176B-ml is running") and lines[1].startswith("***ALERT: tr11-176B-ml is held")


def test_two_held_chains_are_critical() -> None:
    assert said(HELD, NEVER)[0] == 2


def test_nothing_in_the_queue_is_the_known_alert() -> None:
    assert said() == (2, ["***ALERT: tr11-176B-ml is not RUNNING or SCHEDULED! Alert someone at Eng WG***"])


def test_a_finished_training_is_no_alert() -> None:
    code, (line,) = said(end=END)
    assert code == 0 and missing(line, "tr11-176B-ml", "finished", "iteration 160", "5120 samples") == []


def test_a_checkpoint_that_is_not_the_end_changes_nothing() -> None:
    assert said() == said(end=None) and said()[0] == 2
    begun = Snapshot(NOW, was_submitted=True, checkpoint=END)
    assert training.find(begun, SETTINGS) == training.find(replace(begun, checkpoint=None), SETTINGS)


def test_a_training_that_was_never_submitted_is_unknown() -> None:
    code, (line,) = said(was_submitted=False)
    assert code == 3 and "tr11-176B-ml" in line and "ALERT" not in line
    # A checkpoint shows that a training ran here, whatever has become of the records.
    found = training.find(Snapshot(NOW, checkpoint=END), SETTINGS)
    assert exit_code(found) == 2 and "is not RUNNING or SCHEDULED" in found[0].text


def test_where_jobs_of_other_users_are_hidden_the_training_is_unknown_and_no_alert_is_raised() -> None:
    code, (line,) = said(unseen=(BOBS,))
    assert code == 3 and missing(line, "tr11-176B-ml", "chain 12 of bob") == [] and "ALERT" not in line
    code, lines = said(HELD, unseen=(BOBS,))
    assert code == 3 and lines[0] == line and "held" in lines[1]
    assert said(WAITING_FOR_TASK, unseen=(BOBS,)) == said(WAITING_FOR_TASK)
    assert said(unseen=(BOBS,), end=END)[0] == 0


def test_what_is_left_in_the_queue_of_a_finished_training_is_no_alert_either() -> None:
    code, lines = said(HELD, end=END)
    assert code == 0 and len(lines) == 2 and not any("ALERT" in line for line in lines)


def test_a_blind_watcher_reports_the_reason_and_nothing_about_the_training() -> None:
    code, (line,) = said(blind="squeue: no answer")
    assert code == 3 and missing(line, "tr11-176B-ml", "squeue: no answer") == [] and "ALERT" not in line


@pytest.mark.parametrize(
    ("state", "severity", "facts"),
    [
        ("CONFIGURING", Severity.OK, ("2026-03-01T08:49:55",)),
        ("COMPLETING", Severity.OK, ("completing", "2:10:05")),
        ("SUSPENDED", Severity.WARNING, ("suspended", "2:10:05")),
        ("STOPPED", Severity.WARNING, ("stopped", "2:10:05")),
        ("REQUEUED", Severity.OK, ("queue",)),
        ("STAGE_OUT", Severity.OK, ("STAGE_OUT",)),
    ],
)
def test_states_that_the_original_did_not_know_are_named(
    state: str, severity: Severity, facts: tuple[str, ...]
) -> None:
    code, (line,) = said(structs.replace(RUNNING, state=state))
    assert code == severity and missing(line, "tr11-176B-ml", "12_1", "'gpu_p5'", *facts) == []


@pytest.mark.parametrize("state", [*(state for state in PHASES if PHASES[state] is not Phase.ENDED), "A_NEWER_SLURMS"])
def test_no_state_is_unknown(state: str) -> None:
    code, lines = said(structs.replace(RUNNING, state=state))
    assert code < 3 and "unknown" not in lines[0]


def test_what_runs_comes_first_and_the_older_chain_before_the_newer() -> None:
    _, lines = said(HELD, WAITING_FOR_CHAIN, WAITING_FOR_TASK, RUNNING)
    assert [line.split(" (")[-1].split(" ")[0] for line in lines[1:3]] == ["12_[2-3%1]", "20_[1-3%1]"]
    assert "running" in lines[0] and "held" in lines[3]


def test_what_we_print_is_read_back() -> None:
    _, (running, waiting, held) = said(RUNNING, WAITING_FOR_TASK, HELD)
    stamp = "[2026-03-01 11:00:00] PULSE: "
    first, second, third = (parse_pulse(stamp + line) for line in (running, waiting, held))
    assert isinstance(first, Pulse) and isinstance(second, Pulse) and isinstance(third, Alert)
    assert (first.state, first.name, first.job_id, first.nodes) == ("running", "tr11-176B-ml", "12_1", "node[1-4]")
    assert (second.state, second.job_id) == ("array-limit", "12_[2-3%1]")
    assert (third.name, third.team) == ("tr11-176B-ml", "Eng WG")


def test_each_job_in_trouble_has_a_key_of_its_own_and_what_to_type() -> None:
    other = structs.replace(HELD, job_id=31, array_job_id=31)
    found = training.find(Snapshot(NOW, (HELD, other, NEVER), was_submitted=True), SETTINGS)
    assert [one.key for one in found] == ["training:never 40", "training:held 30", "training:held 31"]
    assert found[1].todo.startswith("opsctl request release-queued") and "revise --resubmit" in found[0].todo
    assert found[1].evidence == ("squeue: 30_[1-3%1] is PENDING, reason JobHeldUser",)
    (absent,) = training.find(Snapshot(NOW, was_submitted=True), SETTINGS)
    assert absent.key == "training:absent" and absent.todo
