"""The simulations that the page is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.desk.shapes import MINUTE_S
from benchmarks.simulate import calibration
from benchmarks.simulate.experiments import Between, Plan, Summary, compare, compare_all
from benchmarks.simulate.policies import WAYS, WITHOUT
from benchmarks.simulate.setting import THREE_MONTHS_DAYS, Rates, set_aside, shared

SETTINGS = (set_aside, shared)
SIZES = (50, 200, 1000, 3000, 10_000)
#: Where each decision is left out in turn.
SIZE = 1000
#: Seeds by size: months on few nodes have few failures, so many of them have to be lived through, and take no time.
SEEDS = {50: 24, 200: 12, 1000: 3, 3000: 2, 10_000: 2}
_CALIBRATION_SEEDS = range(10)


@dataclass(frozen=True)
class Study:
    """All outcomes."""

    days: float
    found: Mapping[tuple[str, int, str], Summary]
    calibrated: Mapping[float, Between]
    by_hangs: Mapping[float, Mapping[str, Summary]]  # at SIZE, set aside: all ways by the share of failures that hang

    @property
    def settings(self) -> Sequence[str]:
        """Their names, in order."""
        return list(dict.fromkeys(setting for setting, _, _ in self.found))

    @property
    def minutes_between_failures(self) -> float:
        """At the largest size."""
        return set_aside(SIZES[-1]).between_failures_s / MINUTE_S


def study(days: float = THREE_MONTHS_DAYS) -> Study:
    """Simulate all of it."""
    plans = [
        Plan(setting(nodes, days=days), way, seed)
        for setting in SETTINGS
        for nodes in SIZES
        for way in (*WAYS, *(WITHOUT if nodes == SIZE else ()))
        for seed in range(SEEDS[nodes])
    ]
    # What takes longest first, so that no process is left alone with it.
    found = compare_all(sorted(plans, key=lambda plan: -plan.setting.nodes))
    return Study(
        days=days,
        found={key: found[key] for key in dict.fromkeys((p.setting.name, p.setting.nodes, p.way.name) for p in plans)},
        calibrated=calibration.simulated(_CALIBRATION_SEEDS),
        by_hangs={share: _by_ways(share, days, found) for share in calibration.FIT},
    )


def _by_ways(stuck_share: float, days: float, found: Mapping[tuple[str, int, str], Summary]) -> Mapping[str, Summary]:
    usual = set_aside(SIZE)
    if stuck_share == usual.rates.stuck_share:
        return {way.name: found[usual.name, SIZE, way.name] for way in WAYS}
    setting = replace(usual, rates=Rates(stuck_share=stuck_share), days=days)
    return compare(Plan(setting, way, seed) for way in WAYS for seed in range(SEEDS[SIZE]))


def of_size(nodes: int, seeds: int, days: float, is_shared: bool, all_ways: bool) -> dict[str, Summary]:
    """One comparison."""
    setting = replace((shared if is_shared else set_aside)(nodes), days=days)
    ways = (*WAYS, *(WITHOUT if all_ways else ()))
    found = compare(Plan(setting, way, seed) for way in ways for seed in range(seeds))
    return {way.name: found[way.name] for way in ways}
