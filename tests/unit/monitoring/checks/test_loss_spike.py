"""A loss that jumps, comes back or does not."""

from __future__ import annotations

import re

import msgspec
import pytest

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.loss import loss_spike
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING
from tests.unit.monitoring.lines import Change, lines
from trainer.formats.logs.training_line import TrainingLine


def found(series: tuple[TrainingLine, ...]) -> list[Finding]:
    return loss_spike.find(Snapshot(NOW, (RUNNING,), series=series), Settings("demo", "us"))


def spike(at: int, peak: float, iterations: int, usual: float = 2.19, back: bool = True) -> Change:
    """Straight up to the peak in a tenth of it, then down."""

    def change(place: int) -> dict[str, float]:
        since = place - at
        if since < 0 or (since >= iterations and back):
            return {}
        rise = max(1, iterations // 10)
        height = min(1.0, (since + 1) / rise) * (1.0 if not back else max(0.0, 1.0 - since / iterations))
        return {"loss": usual + (peak - usual) * height}

    return change


def test_the_first_spike_of_bloom_is_found_with_its_height() -> None:
    """2.19 to 5.10 on 12 April 2022, back after 30 iterations."""
    (finding,) = found(lines(600, spike(550, 5.10, 30)))
    assert finding.severity is Severity.WARNING and finding.key == "loss_spike:iteration 30551"
    losses = [float(number) for number in re.findall(r"\d\.\d+", finding.text)]
    assert 2.1 < min(losses) < 2.3 and 4.5 < max(losses) < 5.2 and "iteration 30551" in finding.text


def test_it_has_one_key_at_every_look() -> None:
    series = lines(900, spike(550, 5.10, 30))
    keys = {one.key for end in range(554, 700, 7) for one in found(series[max(0, end - 500) : end])}
    assert keys == {"loss_spike:iteration 30551"}
    assert {len(found(series[max(0, end - 500) : end])) for end in range(554, 700, 7)} == {1}


@pytest.mark.parametrize("step", [1, 10])
def test_a_divergence_that_climbs_slowly_has_one_key_while_the_series_moves_on(step: int) -> None:
    """Which line is the first above follows from what is usual; that must not follow from where the series begins."""
    series = lines(
        1600, lambda n: {"loss": 2.19 + 0.012 * min(100, max(0, n - 900)) + 0.02 * ((n * 7919) % 11 - 5) / 5}, step=step
    )
    keys = {one.key for end in range(960, 1600, 11) for one in found(series[max(0, end - 1000) : end])}
    assert len(keys) == 1


def test_one_that_came_back_is_told_for_six_hours_and_no_longer() -> None:
    series = lines(1000, spike(500, 5.10, 30))
    assert found(series[: 530 + 150]) and found(series[: 530 + 260]) == []


def test_a_loss_that_stays_high_becomes_critical() -> None:
    stays = lines(1000, spike(500, 3.2, 10, back=False))
    (young,), (old,) = found(stays[:530]), found(stays)
    assert (young.severity, old.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert young.key == old.key and missing(old.text, "3.2", "500 iterations") == []


def test_the_long_one_of_tr1_is_one_spike() -> None:
    """2.8 to between 7 and 9, back after 500 iterations, a line every ten."""
    series = lines(400, spike(200, 8.0, 50, usual=2.8), step=10)
    series = tuple(one if n >= 200 and n < 250 else _at(one, 2.8) for n, one in enumerate(series))
    assert [one.key for one in found(series[:255])] == ["loss_spike:iteration 32001"]


def _at(line: TrainingLine, usual: float) -> TrainingLine:
    return msgspec.structs.replace(line, loss=(line.loss or 0) - 2.19 + usual)


def test_one_that_dips_on_its_way_down_is_one() -> None:
    up_and_down = lines(600, lambda n: {"loss": 5.0} if 550 <= n < 580 and n % 6 else {})
    assert [one.key for one in found(up_and_down)] == ["loss_spike:iteration 30551"]


def test_after_a_restart_the_same_spike_is_the_same_finding() -> None:
    """The data are the same, so it comes again at the same iteration."""
    first = lines(600, spike(550, 5.10, 30))
    assert [one.key for one in found((*first[:580], *first[500:600]))] == ["loss_spike:iteration 30551"]


def test_a_loss_that_is_high_again_as_the_training_went_back_is_no_spike() -> None:
    """A rollback, or --load-fallback: from iteration 30,600, at 2.1, to 30,034, at 5.4."""
    falls = lines(600, lambda n: {"loss": max(2.1, 5.6 - n * 0.01)})
    assert found(falls) == []
    assert found((*falls, *falls[33:90])) == []
    again = found((*lines(600), *lines(400, spike(350, 5.10, 30))))
    assert [one.key for one in again] == ["loss_spike:iteration 30351"]


def test_noise_bumps_a_restart_and_a_falling_loss_are_no_spikes() -> None:
    assert found(lines(900)) == []
    assert found(lines(900, lambda n: {"loss": 2.30} if 600 <= n < 620 else {})) == []
    assert found(lines(900, lambda n: {"loss": 2.7} if n == 700 else {})) == []
    start = lines(900, lambda n: {"loss": 1.75 + 10.7 * (1 + n / 4) ** -0.33})
    assert found(start) == []
    assert found(lines(900, lambda n: {"loss": 2.19 - n * 2e-5})) == []
    assert found(()) == []
