"""The screen of `opsctl` without a subcommand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from opsctl.cli import LazyGroup, root
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.overview import OpenFinding
from opsctl.monitoring.snapshot import Published
from opsctl.run.state.kill_switch import KillSwitchState
from opsctl.ui.status import next_steps
from opsctl.ui.status.next_steps import no_run_here, run_here, run_that_cannot_be_read, steps_for
from tests.facts import missing
from tests.unit.monitoring.jobs import HELD, NOW, RUNNING, WAITING_FOR_TASK
from tests.unit.ui.status.runs import now, opened, run
from tests.unit.ui.status.test_overview import OPEN
from tests.unit.ui.status.test_screen import HEALTHY

CRITICAL = OpenFinding(Finding("loss", Severity.CRITICAL, "the loss is not a number", None, todo="opsctl logs"))
TRIGGERED = KillSwitchState(Path("/o/kill-switch"), True, True, by="ana", host="login")


def commands(overview: Any, *found: OpenFinding) -> list[str]:
    return [step.command for step in steps_for(overview, found)]


@pytest.mark.parametrize(
    ("overview", "first"),
    [
        (run(was_submitted=False), "opsctl plan"),
        (run(jobs=(RUNNING,)), "opsctl status --watch"),
        (run(jobs=(WAITING_FOR_TASK,)), "opsctl queue"),
        (run(jobs=(HELD,)), "opsctl queue"),
        (run(), "opsctl attempts"),
        (run(blind="squeue: no answer"), "opsctl doctor"),
        (run(is_finished=True), "opsctl checkpoints list"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.state,
)
def test_the_first_step_follows_from_the_state_of_the_run(overview: Any, first: str) -> None:
    assert commands(overview)[0] == first


def test_a_sick_run_is_to_be_looked_into_first_and_a_triggered_switch_comes_before_all() -> None:
    ended = msgspec.structs.replace(OPEN, closed_at=NOW, reason="failed")
    sick = run(jobs=(RUNNING,), attempts=(ended, OPEN))
    assert commands(sick, CRITICAL)[0] == "opsctl triage"
    assert "opsctl triage" not in commands(now(sick, attempts=(OPEN,)), CRITICAL)  # which needs an ended one
    assert commands(now(sick, kill_switch=TRIGGERED), CRITICAL)[0] == "opsctl kill-switch deactivate"
    assert "opsctl triage" not in commands(
        sick, replace(CRITICAL, finding=replace(CRITICAL.finding, severity=Severity.WARNING))
    )


@pytest.mark.parametrize(("reason", "first"), [("kill-switch", "opsctl submit"), ("failed", "opsctl triage")])
def test_a_run_that_was_stopped_on_purpose_is_to_be_submitted_and_not_triaged(reason: str, first: str) -> None:
    ended = now(run(), attempts=(msgspec.structs.replace(OPEN, closed_at=NOW, reason=reason),))
    absent = replace(CRITICAL, finding=replace(CRITICAL.finding, check="training"))
    assert commands(ended, absent)[0] == first
    assert commands(ended, CRITICAL)[0] == "opsctl triage"


def test_an_edited_run_file_is_to_be_published() -> None:
    edited = now(HEALTHY, published=Published("0003-ab", NOW, "ana@login", ("slurm.nodes",)))
    assert "opsctl revise" in commands(edited) and "opsctl revise" not in commands(HEALTHY)


def test_each_command_that_is_named_is_one() -> None:
    named = {
        step.command
        for steps in (*next_steps._BY_STATE.values(), next_steps._RUNNING, next_steps._SICK, next_steps._BEGIN)
        for step in steps
    }
    for line in named:
        at: click.Command = root
        for word in line.split()[1:]:
            if word.startswith("--"):
                assert any(word in parameter.opts for parameter in at.params), line
            elif isinstance(at, click.Group | LazyGroup):
                found = at.get_command(click.Context(at), word)
                assert found is not None, line
                at = found


@pytest.mark.parametrize("width", [40, 80, 200])
def test_many_findings_fit_on_one_screen(width: int) -> None:
    found = [replace(CRITICAL, finding=replace(CRITICAL.finding, subject=str(n))) for n in range(30)]
    lines = run_here(now(HEALTHY, measured=HEALTHY.seen.measured), found, width, False)
    assert len(lines) <= 24 and missing("\n".join(lines), "26 more", "opsctl status") == []
    assert lines[0].startswith("demo  RUNNING")
    assert all(len(line) <= max(width, 66) for line in lines)


def test_a_healthy_run_shows_its_progress_and_the_command_to_watch_it() -> None:
    text = "\n".join(run_here(HEALTHY, opened(HEALTHY), 100, False))
    assert "iteration 500" in text and "opsctl status --watch" in text
    fresh = run_here(run(was_submitted=False, measured=HEALTHY.seen.measured), (), 100, False)
    assert missing(fresh[0], "demo", "NOT SUBMITTED") == []


def test_without_a_run_it_names_recent_runs_and_the_command_that_creates_one() -> None:
    alone = "\n".join(no_run_here("/home/ana", {}, 100, False))
    assert missing(alone, "/home/ana", "opsctl init NAME") == [] and "--all" not in alone
    known = {f"tr{n}": f"/scratch/tr{n}/run.toml" for n in range(9)}
    text = "\n".join(no_run_here("/home/ana", known, 100, False))
    assert missing(text, "tr8 /scratch/tr8/run.toml", "5 more") == [] and "tr4" not in text
    assert "opsctl status tr8 --watch" in text


def test_what_it_shows_steers_no_terminal() -> None:
    hostile = "\x1b[2J\u202e\n"
    lines = no_run_here(hostile, {hostile: hostile}, 100, False) + run_that_cannot_be_read(hostile, 100, False)
    bad = replace(CRITICAL, finding=replace(CRITICAL.finding, text=hostile, todo=hostile))
    lines += run_here(HEALTHY, [bad], 100, False)
    assert all(line.isprintable() for line in lines)
