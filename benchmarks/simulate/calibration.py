"""BLOOM's own three months beside simulated ones: what was printed of its uptime, what comes out, what was tuned."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from benchmarks.desk.shapes import DAY_S, HOUR_S
from benchmarks.simulate.experiments import Between, Plan, compare
from benchmarks.simulate.policies import EIGHT_HOURS
from benchmarks.simulate.setting import Rates, Setting, bloom

#: Iterations and when they were reached: chronicles of tr11-176B-ml, 18 March (a day) and 4 July, 9 pm PST.
FIRST = (12_695, datetime(2022, 3, 18, 12, tzinfo=UTC))
LAST = (94_767, datetime(2022, 7, 5, 5, tzinfo=UTC))
SECONDS_PER_ITERATION = bloom().seconds_per_iteration
#: Its own rate: one or two GPUs a week (arXiv 2211.05100, section 3.4) among 48 nodes.
FAILURES = 1.5 / 7 / 48
#: What was tried of the one number that is tuned.
SHARES = (0.0, 0.15, 0.3, 0.45, 0.6)
#: Of these the ones that go with what was printed: it does not say which.
FIT = (0.15, 0.3, 0.45)
#: What its evaluation's deadlock cost, which is not simulated: 18, 6 and 11 h.
DEADLOCK_S = 35 * HOUR_S

_LASTED_S = (LAST[1] - FIRST[1]).total_seconds()


def printed_uptime() -> float:
    """Return the share of the wall time that the iterations took at 105 s each; the share itself is not published."""
    return (LAST[0] - FIRST[0]) * SECONDS_PER_ITERATION / _LASTED_S


def deadlocked() -> float:
    """Return the share of the wall time that the deadlock took."""
    return DEADLOCK_S / _LASTED_S


def as_bloom(stuck_share: float) -> Setting:
    """Its setting, with one node that became slow, as it had, and none from the beginning."""
    rates = Rates(failures=FAILURES, slow_share=0.0, stuck_share=stuck_share)
    return bloom(rates, _LASTED_S / DAY_S)


def simulated(seeds: Sequence[int]) -> dict[float, Between]:
    """Uptime by the share of failures after which the step hangs."""
    return {
        share: compare(Plan(as_bloom(share), EIGHT_HOURS, seed) for seed in seeds)[EIGHT_HOURS.name].goodput
        for share in SHARES
    }
