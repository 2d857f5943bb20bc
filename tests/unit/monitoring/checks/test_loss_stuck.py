"""A loss that does not move, or lies above what it had reached."""

from __future__ import annotations

import re

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.loss import loss_stuck
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING
from tests.unit.monitoring.lines import lines
from trainer.formats.logs.training_line import TrainingLine


def found(series: tuple[TrainingLine, ...], **seen: bool) -> list[tuple[Severity, str]]:
    findings = loss_stuck.find(Snapshot(NOW, (RUNNING,), series=series, **seen), Settings("demo", "us"))  # type: ignore[arg-type]
    return [(one.severity, one.text) for one in findings]


def test_the_same_number_over_and_over_is_critical() -> None:
    series = lines(300, lambda n: {"loss": 11.76} if n >= 280 else {})
    ((severity, text),) = found(series)
    assert severity is Severity.CRITICAL and missing(text, "11.76", "20 lines") == []
    assert found(series[:291]) == []


def test_a_loss_that_hardly_moves_is_found() -> None:
    series = lines(500, lambda n: {"loss": 2.19 + 1e-5 * (n % 7)} if n >= 450 else {})
    ((severity, text),) = found(series)
    assert severity is Severity.WARNING and re.findall(r"\de-\d+", text)


def test_a_slow_divergence_is_found() -> None:
    """No jump: a twentieth more in ten hours, and on."""
    series = lines(1000, lambda n: {"loss": 2.19 + max(0, n - 500) * 0.0006 + 0.01 * (n % 3 - 1)})
    ((severity, text),) = found(series)
    assert severity is Severity.WARNING and "2.1" in text
    assert found(series[:560]) == []


def test_late_in_a_training_a_loss_that_falls_slowly_or_not_at_all_is_no_finding() -> None:
    assert found(lines(1000)) == []
    assert found(lines(1000, lambda n: {"loss": 1.95 - 1e-6 * n + 0.01 * ((n * 7919) % 11 - 5) / 5})) == []


def test_a_larger_batch_a_short_spike_and_the_end_are_no_finding() -> None:
    calmer = lines(1000, lambda n: {"loss": 2.19 + (0.04 if n < 500 else 0.012) * ((n * 7919) % 11 - 5) / 5})
    assert found(calmer) == []
    assert found(lines(1000, lambda n: {"loss": 5.1 + 0.01 * (n % 3)} if 960 <= n < 990 else {})) == []
    assert found(lines(300, lambda n: {"loss": 2.0} if n >= 280 else {}), is_finished=True) == []
    assert found(()) == []


def test_a_loss_of_iterations_that_begin_again_is_not_compared_with_what_is_thrown_away() -> None:
    falls = lines(600, lambda n: {"loss": max(2.1, 5.6 - n * 0.01) + 0.01 * (n % 3)})
    assert found((*falls, *falls[33:90])) == []
