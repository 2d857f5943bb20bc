"""Test the findings about a run that is a copy, or is not where its tasks look for it."""

from __future__ import annotations

from pathlib import Path

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.records import identity
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot, Whereabouts
from opsctl.run.state.identity import Place, Standing
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING, WAITING_FOR_TASK

HERE, WAS = Path("/new/a b"), Path("/old/output")


def found(standing: Standing, *elsewhere: str) -> list[str]:
    """Return the texts about a run in HERE. `elsewhere` is where its running and its waiting task look for it."""
    jobs = (RUNNING, WAITING_FOR_TASK)
    seen = Whereabouts(HERE, Place(standing, WAS), tuple(zip(elsewhere, jobs, strict=False)))
    findings = identity.find(Snapshot(NOW, jobs, whereabouts=seen), Settings("demo", "the team"))
    assert all(one.severity is Severity.WARNING for one in findings)
    return [f"{one.text}; {one.todo}" for one in findings]


def test_a_copy_is_found_with_its_original() -> None:
    (text,) = found(Standing.COPY)
    assert missing(text, HERE, "copy", WAS, "opsctl submit") == []


def test_the_copy_of_a_finished_run_is_not_sent_to_a_submit_that_refuses_it() -> None:
    seen = Whereabouts(HERE, Place(Standing.COPY, WAS))
    (finding,) = identity.find(Snapshot(NOW, whereabouts=seen, is_finished=True), Settings("demo", "the team"))
    assert 0 <= finding.todo.find("run file") < finding.todo.index("opsctl submit")


def test_tasks_that_look_in_the_old_folder_are_named_with_the_commands_to_type() -> None:
    (text,) = found(Standing.MOVED, "/old/output", "/old/output")
    ids = (RUNNING.display_id, WAITING_FOR_TASK.display_id)
    assert missing(text, *ids, "ln -s '/new/a b' /old/output", "opsctl revise --resubmit") == []
    assert len(found(Standing.SAME, "/old/output", "/older/output")) == 2


def test_a_run_of_which_nothing_is_queued_was_moved_and_that_is_all() -> None:
    assert found(Standing.MOVED) == []


def test_a_run_that_is_where_it_was_is_nothing_to_say() -> None:
    assert identity.find(Snapshot(NOW, (RUNNING,)), Settings("demo", "the team")) == []


def test_a_run_that_may_be_moved_or_a_copy_is_found() -> None:
    (text,) = found(Standing.UNCLEAR)
    assert missing(text, HERE, WAS, "moved", "copy", "opsctl submit") == []
