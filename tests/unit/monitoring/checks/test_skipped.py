"""Iterations that were skipped."""

from __future__ import annotations

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.loss import skipped
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.config.schema import WatchTable
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING
from tests.unit.monitoring.lines import lines
from trainer.formats.logs.training_line import TrainingLine


def found(series: tuple[TrainingLine, ...], **watch: float) -> list[str]:
    settings = Settings("demo", "us", watch=WatchTable(**watch))  # type: ignore[arg-type]
    return [one.text for one in skipped.find(Snapshot(NOW, (RUNNING,), series=series), settings)]


def test_a_share_above_the_limit_is_found_for_any_log_interval() -> None:
    one_each = lines(300, lambda n: {"skipped_iterations": int(n % 10 == 0)})
    ten_each = lines(300, lambda _: {"skipped_iterations": 1}, step=10)
    assert found(one_each) == found(ten_each)
    (text,) = found(one_each)
    assert missing(text, "10 of the newest 100", "10 %") == []
    assert found(one_each, skipped_percent=12.0) == []


def test_what_somebody_asked_to_be_skipped_is_none() -> None:
    asked = {"skipped_iterations": 1, "skipped_on_request": 1, "loss": None, "seconds_per_iteration": None}
    assert found(lines(300, lambda n: asked if 250 < n < 280 else {})) == []


def test_nan_counts_as_well() -> None:
    assert found(lines(300, lambda n: {"nan_iterations": int(n % 10 == 0)})) != []


def test_a_loss_scale_that_is_tried_now_and_then_or_found_at_the_beginning_is_none() -> None:
    assert found(lines(300, lambda n: {"skipped_iterations": int(n % 50 == 0)})) == []
    assert found(lines(100, lambda n: {"skipped_iterations": int(n < 30)}, first=1)) == []
    assert found(lines(50, lambda _: {"skipped_iterations": 1})) == []
