"""The screen of `opsctl status --all`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.core.output import json_text
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.overview import Overview, with_memory
from opsctl.run.checkpoints.inventory import Checkpoint
from opsctl.run.logs.records import Measured
from opsctl.run.state.alerts import Remembered
from opsctl.ui.status.all_runs import Row, all_lines, printed_row, sorted_rows
from tests.printed_json import printed
from tests.unit.monitoring.jobs import HELD, NOW, RUNNING, WAITING_FOR_CHAIN, WAITING_FOR_TASK, pending
from tests.unit.ui.status.runs import iteration, now, opened, run

BUSY = run(
    jobs=(RUNNING, WAITING_FOR_TASK, WAITING_FOR_CHAIN, pending("Dependency", 21, "1-3%1")),
    measured=Measured(last_iteration=iteration(), seconds_per_iteration=105.2, samples_per_second=19.47),
    log_written_at=NOW,
    total_samples=32_000,
    checkpoint=Checkpoint(Path("/o/checkpoints/global_step400"), 400, 12800),
    checkpoint_at=NOW - timedelta(hours=1),
)


def row(overview: Overview, name: str = "tr1", output: str = "/o") -> Row:
    return Row(name, Path(output), replace(overview, name=name), tuple(opened(overview)))


def loud(overview: Overview, name: str, finding: Finding, **memory: object) -> Row:
    remembered = {finding.key: Remembered(severity="warning", since=NOW, last_seen=NOW, **memory)} if memory else {}  # type: ignore[arg-type]
    return Row(name, Path("/o"), overview, tuple(with_memory([finding], remembered, {finding.check})))


WELL = row(BUSY)
ABSENT = row(now(BUSY, jobs=()), "absent")
FINISHED = row(run(is_finished=True, checkpoint=BUSY.seen.checkpoint, checkpoint_at=NOW - timedelta(days=3)), "a-done")
BROKEN = Row("broken", None, None, (), "run.toml: cannot read the run file")
BLIND = row(now(BUSY, jobs=(), blind="squeue: no answer"), "blind")
SLOW = loud(BUSY, "slow", Finding("speed", Severity.WARNING, "7 % slower than usual"), acknowledged_by="ben")
ALL = sorted_rows([WELL, FINISHED, SLOW, BLIND, BROKEN, ABSENT])


def test_the_worst_comes_first_what_nobody_knows_second_and_what_is_over_last() -> None:
    assert [one.name for one in ALL] == ["absent", "blind", "broken", "slow", "tr1", "a-done"]


def test_the_screen_of_all_runs(golden: Callable[[str, str], None]) -> None:
    lines = all_lines(ALL, NOW, 100, colour=False)
    golden("status/all_runs.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_no_line_is_longer_than_the_screen(width: int) -> None:
    long = Finding("nodes", Severity.CRITICAL, "words " * 60)
    rows = [*ALL, loud(BUSY, "a-very-long-name-of-a-run-" * 4, long), row(now(BUSY, jobs=(HELD,)))]
    for line in all_lines(sorted_rows(rows), NOW, width, colour=False)[1:]:
        assert len(line) <= width, line


def test_a_narrow_screen_keeps_what_matters_most() -> None:
    head = all_lines(ALL, NOW, 44, colour=False)[1].split()
    assert head[:3] == ["RUN", "STATE", "DONE"] and head[-1] == "BEHIND" and "SPEED" not in head


def test_colour_changes_no_word() -> None:
    painted = all_lines(ALL, NOW, 100, colour=True)
    assert any("\x1b[31mabsent" in line for line in painted) and any("\x1b[32mrunning" in line for line in painted)
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in painted] == all_lines(ALL, NOW, 100, colour=False)


def test_nothing_of_others_steers_the_terminal() -> None:
    evil = Finding("nodes", Severity.CRITICAL, "\x1b[2Jgone\nand more")
    rows = [
        loud(BUSY, "de\x1b]0;mo", evil, acknowledged_by="e\x1b[2Jve"),
        Row("x", None, None, (), "\x1b[31mno"),
    ]
    assert "\x1b" not in "".join(all_lines(rows, NOW, 100, colour=False))


def test_an_empty_list_names_a_command_that_adds_a_run() -> None:
    assert "opsctl" in all_lines([], NOW, 80, colour=False)[0]


def test_json_has_the_same_rows() -> None:
    value = printed("status", json_text("runs", [printed_row(one) for one in ALL]))
    assert [one["name"] for one in value] == [one.name for one in ALL]
    broken, slow = value[2], value[3]
    assert broken["problem"] and broken["progress"] is None and broken["state"] == "unreadable"
    assert (slow["arrays_behind"], slow["findings"][0]["acknowledged_by"]) == (2, "ben")
    assert value[1]["slurm_problem"] == "squeue: no answer" and value[1]["arrays_behind"] is None
