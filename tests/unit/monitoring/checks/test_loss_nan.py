"""A loss that is no number."""

from __future__ import annotations

import math

import pytest

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.loss import loss_nan
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING
from tests.unit.monitoring.lines import lines
from trainer.formats.logs.training_line import TrainingLine


def found(series: tuple[TrainingLine, ...]) -> list[tuple[Severity, str]]:
    findings = loss_nan.find(Snapshot(NOW, (RUNNING,), series=series), Settings("demo", "us"))
    return [(one.severity, one.text) for one in findings]


@pytest.mark.parametrize("nothing", [{"loss": None, "nan_iterations": 1}, {"loss": math.nan}, {"loss": math.inf}])
def test_two_lines_without_a_finite_loss_are_critical(nothing: dict[str, float]) -> None:
    series = lines(100, lambda n: nothing if n >= 98 else {})
    ((severity, text),) = found(series)
    assert severity is Severity.CRITICAL and missing(text, "iteration 30099", "2 lines") == []


def test_one_that_was_skipped_and_one_that_came_back_are_none() -> None:
    assert found(lines(100, lambda n: {"loss": None, "skipped_iterations": 1} if n == 99 else {})) == []
    assert found(lines(100, lambda n: {"loss": None} if 90 <= n < 99 else {})) == []


def test_iterations_skipped_on_request_are_not_found_and_hide_nothing() -> None:
    asked = {"loss": None, "skipped_iterations": 1, "skipped_on_request": 1, "seconds_per_iteration": None}
    assert found(lines(100, lambda n: asked if n >= 90 else {})) == []
    broken = {"loss": None, "nan_iterations": 1}
    series = lines(100, lambda n: asked if n == 98 else broken if n in (97, 99) else {})
    ((severity, text),) = found(series)
    assert severity is Severity.CRITICAL and missing(text, "iteration 30098", "2 lines") == []


def test_a_log_that_never_says_a_loss_says_nothing() -> None:
    assert found(lines(50, lambda _: {"loss": None})) == found(()) == []
    assert found(lines(50, lambda _: {"loss": None, "nan_iterations": 1})) != []


def test_lines_between_those_with_a_loss_are_not_found() -> None:
    """Another program may report each step, and its loss once in many."""
    between = {"loss": None, "nan_iterations": None}
    assert found(lines(100, lambda n: between if n % 20 else {})) == []
    assert found(lines(100, lambda n: between if n % 20 else {"loss": None, "nan_iterations": 1})) != []
