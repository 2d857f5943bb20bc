"""A gradient norm that climbs."""

from __future__ import annotations

import math

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.loss import gradients
from opsctl.monitoring.snapshot import Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING
from tests.unit.monitoring.lines import lines, scaled
from trainer.formats.logs.training_line import TrainingLine


def found(series: tuple[TrainingLine, ...]) -> list[str]:
    return [one.text for one in gradients.find(Snapshot(NOW, (RUNNING,), series=series), Settings("demo", "us"))]


def test_most_of_an_hour_at_more_than_twice_the_usual_is_found() -> None:
    (text,) = found(scaled(lines(500), -30, grad_norm=3.0))
    assert missing(text, "gradient norm", "0.417", "0.142") == []


def test_one_that_climbs_for_a_day_is_found() -> None:
    slowly = lines(1000, lambda n: {"grad_norm": 0.14 * 1.004 ** max(0, n - 600)})
    assert found(slowly) != []


def test_twice_the_usual_is_found_while_it_is_twice_also_where_the_norm_had_drifted_down() -> None:
    """Five times in a day, a line in 105 s, from a seventh below the usual: twice after 354 lines."""

    def climb(n: int) -> dict[str, float]:
        noise = 1 + 0.12 * ((n * 7919) % 11 - 5) / 5
        return {"grad_norm": noise * (0.14 if n < 600 else 0.119 * 5 ** ((n - 600) / 823))}

    assert found(lines(600 + 354 + 45, climb)) != []
    assert found(lines(600 + 150, climb)) == []


def test_single_large_ones_a_start_and_a_little_more_are_none() -> None:
    assert found(lines(500, lambda n: {"grad_norm": 5.0} if n % 15 == 0 else {})) == []
    assert found(scaled(lines(500), -200, grad_norm=1.3)) == found(scaled(lines(500), -200, grad_norm=1.5)) == []
    assert found(lines(500, lambda n: {"grad_norm": 0.14 + math.exp(-n / 50)})) == []
    assert found(lines(100, lambda _: {"grad_norm": 3.0})) == found(()) == []
