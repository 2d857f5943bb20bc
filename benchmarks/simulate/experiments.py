"""Many seeds of many ways to run a training, in two processes, with how sure the outcome is."""

from __future__ import annotations

import math
import multiprocessing
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.desk.together import PROCESSES
from benchmarks.simulate.outcome import Outcome, simulate
from benchmarks.simulate.policies import Way
from benchmarks.simulate.setting import Setting

#: Student's t for 95 % by degrees of freedom, from 1 on.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Plan:
    """One simulation."""

    setting: Setting
    way: Way
    seed: int


@dataclass(frozen=True)
class Between:
    """A mean over seeds and, where there are several, half of its 95 % interval."""

    middle: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Between:
        """Return the interval of independent values."""
        if len(values) < 2:
            return cls(values[0], None)
        t = _T[min(len(values), len(_T) + 1) - 2]
        return cls(statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values)))


@dataclass(frozen=True)
class Summary:
    """The results of all seeds of one way."""

    outcomes: Mapping[int, Outcome]  # by seed

    @property
    def goodput(self) -> Between:
        """The goodput, as a share of the wall time."""
        return Between.of([one.goodput for one in self.outcomes.values()])

    @property
    def of_node_hours(self) -> Between:
        """The goodput, as a share of the held node hours."""
        return Between.of([one.of_node_hours for one in self.outcomes.values()])

    def share(self, part: str) -> float:
        """The mean of a part."""
        return statistics.fmean(one.shares[part] for one in self.outcomes.values())

    def worth_beside(self, other: Summary) -> Between:
        """By how much this goodput is more than the other's, seed by seed."""
        seeds = [seed for seed in self.outcomes if seed in other.outcomes]
        return Between.of([self.outcomes[seed].goodput - other.outcomes[seed].goodput for seed in seeds])


def compare(plans: Iterable[Plan]) -> dict[str, Summary]:
    """One summary a way, by its name."""
    return {key[2]: summary for key, summary in compare_all(plans).items()}


def compare_all(plans: Iterable[Plan]) -> dict[tuple[str, int, str], Summary]:
    """One summary for each setting, size and way."""
    found: dict[tuple[str, int, str], dict[int, Outcome]] = defaultdict(dict)
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        for plan, outcome in pool.imap_unordered(_simulate, list(plans)):
            found[plan.setting.name, plan.setting.nodes, plan.way.name][plan.seed] = outcome
    return {key: Summary(dict(sorted(by_seed.items()))) for key, by_seed in found.items()}


def _simulate(plan: Plan) -> tuple[Plan, Outcome]:
    return plan, simulate(plan.setting, plan.way, plan.seed)
