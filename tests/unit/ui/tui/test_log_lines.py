"""The log's lines on the screen that stays."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from opsctl.ui.tui.panel import told_line
from trainer.formats.logs.training_line import TrainingLine, write_training_line

LINE = TrainingLine(
    iteration=181, total_iterations=600, consumed_samples=5792, seconds_per_iteration=0.53, loss=4.47649, grad_norm=0.4
)


def test_a_line_that_fits_is_shown_as_it_is_and_of_a_longer_one_what_somebody_looks_for() -> None:
    line = f"[default1]:{write_training_line(LINE)}"
    assert told_line(line, len(line)) == line
    assert told_line(line, len(line) - 1) == "iteration 181 | loss 4.47649 | gradient norm 0.400 | 0.53 s"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"loss": None, "nan_iterations": 1}, "iteration 181 | no loss | gradient norm 0.400 | 0.53 s | 1 NaN"),
        ({"grad_norm": None, "skipped_iterations": 2}, "iteration 181 | loss 4.47649 | 0.53 s | 2 skipped"),
    ],
)
def test_what_is_unusual_is_not_left_out(more: dict[str, object], told: str) -> None:
    assert told_line(write_training_line(replace(LINE, **more)), 40) == told


def test_another_line_is_left_to_the_screen_and_can_do_nothing_to_it() -> None:
    shown = told_line("RuntimeError: \x1b[2J" + "x" * 100, 40)
    assert shown.startswith("RuntimeError: ") and "\x1b" not in shown
