"""How often to save, from how often the training fails and what a save takes. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Fewer failures say too little: of so many the mean time between them is known to a factor of two.
ENOUGH_FAILURES = 3


#: Of the time between failures, where nothing was ever saved and nobody knows what a save takes: half of it is redone.
UNKNOWN_SHARE = 0.1


@dataclass(frozen=True)
class Best:
    """The save interval with the least expected loss."""

    seconds: float
    iterations: int
    lost_share: float  # of the training's time, expected at it
    lost_share_now: float | None  # at the interval in use; None where that is not one number


def best_interval_s(save_s: float, between_failures_s: float) -> float:
    """Seconds of training between saves that lose least.

    Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
    Computer Systems 22 (2006), eq. 37; its first term is Young's (1974).
    """
    if save_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = save_s / (2 * between_failures_s)
    return math.sqrt(2 * save_s * between_failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def lost_share(interval_s: float, save_s: float, between_failures_s: float) -> float:
    """Of the training's time, what saves take and what failures undo: half an interval and a save, each. First order.

    No more than 1.
    """
    if interval_s <= 0:
        return 1.0
    return min(1.0, save_s / (interval_s + save_s) + (interval_s / 2 + save_s) / between_failures_s)


def best(save_s: float, between_failures_s: float, seconds_per_iteration: float, interval_now: int | None) -> Best:
    """The same in iterations, beside what the run uses."""
    iterations = max(1, round(best_interval_s(save_s, between_failures_s) / seconds_per_iteration))
    at_best = lost_share(iterations * seconds_per_iteration, save_s, between_failures_s)
    now = None if not interval_now else lost_share(interval_now * seconds_per_iteration, save_s, between_failures_s)
    return Best(iterations * seconds_per_iteration, iterations, at_best, now)


def at_first(between_failures_s: float, seconds_per_iteration: float) -> int:
    """Iterations between saves of a training that failed so often before its first one that none was measured."""
    return max(1, round(UNKNOWN_SHARE * between_failures_s / seconds_per_iteration))
