"""The spike guard's lines, written and read back."""

from __future__ import annotations

import math

import pytest

from trainer.formats.logs.guard_lines import (
    SKIPPED,
    GuardLine,
    NotRolledBack,
    RolledBack,
    RunAgain,
    Unusual,
    parse_guard_line,
    write_not_rolled_back,
    write_rolled_back,
    write_run_again,
    write_unusual,
)
from trainer.recipe.spike_guard import Judgement, Window


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            write_unusual(31217, Judgement(2.5, 15.9, 23.04, 28.0, is_unusual=True), SKIPPED),
            Unusual(31217, 2.5, 15.9, "update skipped"),
        ),
        (write_run_again(RunAgain(7, "hardware", "on a node")), RunAgain(7, "hardware", "on a node")),
        (write_rolled_back(Window(37, 40, "a: b", 36, 39)), RolledBack(39, 36, 37, 40, "a: b")),
        (write_not_rolled_back(NotRolledBack(9, "nothing there")), NotRolledBack(9, "nothing there")),
    ],
)
def test_each_is_read_as_it_was_written(text: str, line: GuardLine) -> None:
    assert parse_guard_line(text) == line
    assert parse_guard_line(text[12:]) is None


def test_a_loss_that_is_no_number_is_said() -> None:
    found = parse_guard_line(write_unusual(3, Judgement(math.nan, math.nan, math.inf, None, is_unusual=True), "logged"))
    assert isinstance(found, Unusual) and math.isnan(found.loss)
