"""One run on a screen that stays, of whatever size."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.overview import Extras, OpenFinding, Overview, RunStatus
from opsctl.run.logs.records import Measured
from opsctl.run.state.kill_switch import KillSwitchState
from opsctl.slurm.nodes import Node
from opsctl.ui.tui.panel import Section, Shown, cut, fitted, next_save, panel_lines
from tests.unit.monitoring.jobs import NOW
from tests.unit.ui.status.runs import now, opened
from tests.unit.ui.status.test_screen import HEALTHY
from trainer.formats.logs.training_line import TrainingLine
from trainer.recipe.save_schedule import SavePhase, SaveSchedule

SAVES = SaveSchedule((SavePhase(200),))
SERIES = tuple(
    TrainingLine(iteration=n, total_iterations=1000, loss=3.0 - n / 1000, seconds_per_iteration=105.0)
    for n in range(300, 501)
)
TRAINING = now(
    HEALTHY,
    total_samples=None,
    series=SERIES,
    nodes=(Node("x1", "allocated", ""), Node("x2", "draining", "bad GPU")),
)
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\n\rall is well"
LOG = tuple(f"line {n} of the log" for n in range(200))


def shown(overview: Overview = TRAINING, **known: Any) -> Shown:
    status = RunStatus(None, overview, Extras(), tuple(opened(overview)))  # type: ignore[arg-type]
    return Shown("demo", **{"status": status, "saves": SAVES, "last_lines": LOG, "looked_at": NOW, **known})


def sick() -> Shown:
    worst = Finding("loss", Severity.CRITICAL, f"the loss is not a number {HOSTILE}", None, todo=HOSTILE)
    found = [OpenFinding(replace(worst, subject=str(n))) for n in range(9)]
    one = shown(last_lines=(HOSTILE,) * 200)
    assert one.status is not None
    return replace(one, status=replace(one.status, found=tuple(found)), problem=HOSTILE)


def plain(lines: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]


@given(st.integers(1, 220), st.integers(1, 70), st.booleans(), st.sampled_from(["well", "sick", "nothing yet"]))
def test_it_fits_every_size_and_nothing_in_it_steers_the_terminal(
    width: int, height: int, colour: bool, how: str
) -> None:
    view = {"well": shown(), "sick": sick(), "nothing yet": Shown("demo")}[how]
    lines = panel_lines(view, NOW, width, height, colour)
    assert 1 <= len(lines) <= height
    for line in plain(lines):
        assert len(line) <= width and line.isprintable()
    if not colour:
        assert lines == plain(lines)


def test_80_by_24_shows_all_that_one_asks_first_and_the_end_of_the_log() -> None:
    lines = panel_lines(shown(), NOW, 80, 23, False)
    text = "\n".join(lines)
    for word in (
        "demo  RUNNING",
        "training     ",
        "50.0 %  iteration 500 of 1,000",
        "next save    ",
        "at iteration 600, in 2 h",
        "time limit   ",
        "loss         ",
        "s/iteration  ",
        "waits for the task before it",
        "x2 of the running job is draining: bad GPU",
        "iteration 400, saved",
    ):
        assert word in text, word
    assert lines[-1] == LOG[-1] and lines[-2] == LOG[-2]
    assert len(lines) == 23


def test_a_tall_screen_fills_with_the_log_newest_last() -> None:
    lines = panel_lines(shown(), NOW, 200, 59, False)
    assert len(lines) == 59 and lines[-1] == LOG[-1]
    assert sum(line.startswith("line ") for line in lines) > 25


def test_200_columns_show_curves_queue_and_nodes_side_by_side_and_nothing_less() -> None:
    wide, narrow = (panel_lines(shown(), NOW, width, 40, False) for width in (200, 120))
    (row,) = (line for line in wide if line.startswith("training "))
    assert " job  " in row and " nodes  " in row
    assert sum(line.startswith("line ") for line in wide) > sum(line.startswith("line ") for line in narrow)
    words = set("\n".join(narrow).split()) - set("\n".join(wide).split())
    assert not [word for word in words if word.isalnum()]
    assert max(line.count("█") for line in wide) > 60


def test_20_by_5_still_says_who_it_is_what_is_wrong_and_how_far_it_is() -> None:
    lines = panel_lines(sick(), NOW, 20, 4, False)
    assert len(lines) == 4 and lines[0].startswith("demo  RUNNI") and lines[2].startswith("critical")
    well = panel_lines(shown(), NOW, 20, 4, False)
    assert well[0].startswith("demo  RUNNING") and any(line.startswith("training 50.0 %") for line in well)


def test_a_look_that_failed_leaves_what_was_seen_and_says_since_when() -> None:
    later = NOW + timedelta(minutes=3)
    text = "\n".join(panel_lines(shown(problem="/o: no such folder"), later, 100, 30, False))
    assert re.search(r"/o: no such folder.*0:03:00", text) and "500 of 1,000" in text
    assert "no run here" in "\n".join(panel_lines(Shown("demo", problem="no run here"), NOW, 60, 9, False))


def test_a_look_that_does_not_come_back_is_told() -> None:
    late = panel_lines(shown(), NOW + timedelta(seconds=40), 100, 30, False)
    assert any("40 s old" in line for line in late)
    assert not any(" s old" in line for line in panel_lines(shown(), NOW + timedelta(seconds=6), 100, 30, False))


def test_slurm_out_of_reach_is_told_beside_what_the_files_say() -> None:
    blind = now(TRAINING, blind="slurmctld does not answer", jobs=())
    text = "\n".join(panel_lines(shown(blind), NOW, 100, 30, False))
    assert "slurmctld does not answer" in text and "500 of 1,000" in text


def test_a_triggered_kill_switch_comes_before_the_log() -> None:
    triggered = now(TRAINING, kill_switch=KillSwitchState(Path("/o/kill-switch"), True, True, by="ana", host="login"))
    assert any("TRIGGERED" in line for line in panel_lines(shown(triggered), NOW, 80, 9, False))


@pytest.mark.parametrize(
    ("iteration", "saved", "expected"),
    [(500, 400, (0.5, 600)), (400, 400, (0.0, 600)), (950, 800, (0.75, 1000)), (100, None, (0.5, 200))],
)
def test_the_next_save_is_the_schedules_or_the_end(
    iteration: int, saved: int | None, expected: tuple[float, int]
) -> None:
    line = TrainingLine(iteration=iteration, total_iterations=1000, loss=2.0)
    at = now(TRAINING, measured=Measured(last_iteration=line, seconds_per_iteration=2.0))
    checkpoint = at.seen.checkpoint
    assert checkpoint is not None
    at = now(at, checkpoint=replace(checkpoint, iteration=saved) if saved is not None else None)
    found = next_save(at, SAVES)
    assert found == (*expected, 2.0 * (expected[1] - iteration))
    assert next_save(at, None) is None and next_save(at, SaveSchedule()) is None


def test_what_is_wrong_and_what_to_do_is_told_in_whole_lines_where_they_are_too_long_for_one() -> None:
    words = "3 attempts in a row without a new checkpoint, the chain stops: opsctl triage says what they died of"
    worst = Finding("no_progress", Severity.CRITICAL, words, None, todo="opsctl attempts; opsctl logs " * 3)
    one = shown()
    assert one.status is not None
    status = replace(one.status, found=(OpenFinding(worst),))
    lines = plain(panel_lines(replace(one, status=status), NOW, 60, 40, False))
    assert " ".join(" ".join(lines[1:4]).split()) == f"critical {words}"
    assert not any("…" in line for line in lines[1:4])


def test_sections_get_their_least_by_rank_before_any_gets_more() -> None:
    log = Section(2, 1, ("1", "2", "3"), is_log=True)
    sections = [Section(0, 1, ("a",)), Section(3, 1, ("b", "b2")), log]
    assert fitted(sections, 2) == ["a", "3"]
    assert fitted(sections, 3) == ["a", "b", "3"]
    assert fitted(sections, 5) == ["a", "b", "1", "2", "3"]
    assert fitted(sections, 9) == ["a", "b", "b2", "1", "2", "3"]


def test_a_line_is_cut_by_what_is_seen_of_it_and_its_colours_end() -> None:
    assert cut("\x1b[31mabcdef\x1b[0m ghi", 5) == "\x1b[31mabcd\x1b[0m…"
    assert cut("abc", 3) == "abc" and cut("abcd", 1) == "…" and cut("abcd", 0) == ""
