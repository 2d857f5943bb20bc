"""The setting of a simulated training: its size, its cluster, its speed, and the rates of faults."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from benchmarks.desk import shapes
from benchmarks.desk.shapes import DAY_S, EXIT_MARGIN_S, HOUR_S
from benchmarks.simulate import figures
from opsctl.run.logs.measurements import longest_silence_s

THREE_MONTHS_DAYS = 91.0
#: Micro-batches of each replica on all nodes, a node each: a smaller number of replicas has to divide the same batch.
_MICRO_BATCHES = 24


#: By whether its nodes are set aside: the trainings whose waits these are.
_SHAPES = {True: shapes.exclusive(random.Random(0)), False: shapes.shared(random.Random(0))}


@dataclass(frozen=True)
class Rates:
    """The rates of faults; times in seconds. A rate or share of 0 and an infinite time mean never."""

    failures: float = figures.FAILURES.value  # of a node in a day
    stuck_share: float = figures.STUCK_SHARE.value
    stays_share: float = figures.STAYS.value
    slow_share: float = figures.SLOW_NODES.value
    slowed: float = figures.SLOWED.value  # of a node in a day
    broken_every_s: float = figures.BROKEN_EVERY_S.value
    emergency_every_s: float = figures.EMERGENCY_EVERY_S.value
    maintenance_every_s: float = figures.MAINTENANCE_EVERY_S.value
    stalls_every_s: float = figures.STALLS_EVERY_S.value


#: Nothing goes wrong.
CALM = Rates(0.0, 0.0, 0.0, 0.0, 0.0, math.inf, math.inf, math.inf, math.inf)


@dataclass(frozen=True)
class Setting:
    """One training on one cluster."""

    name: str
    nodes: int
    partition: int  # nodes that Slurm may give it
    is_exclusive: bool  # set aside for it: a queue of minutes
    seconds_per_iteration: float
    save_s: float
    eval_interval: int
    eval_s: float
    start_s: tuple[float, float]
    time_limit_s: float
    tasks: int  # of an array
    keep_queued: int
    rates: Rates = Rates()
    days: float = THREE_MONTHS_DAYS
    fixed_interval_s: float = figures.FIXED_INTERVAL_S.value  # between saves, until a user says another

    def fewer(self, left: int) -> int:
        """Return the largest number of nodes, up to `left`, that divides the global batch."""
        return next((many for many in range(left, 0, -1) if _MICRO_BATCHES * self.nodes % many == 0), 0)

    @property
    def fixed_interval(self) -> int:
        """The originals' save interval in iterations of this training."""
        return max(1, round(self.fixed_interval_s / self.seconds_per_iteration))

    @property
    def youngs_interval(self) -> int:
        """Iterations between saves by Young's formula (1974) and the failures of its nodes; the originals' if none."""
        if not self.rates.failures:
            return self.fixed_interval
        return max(1, round(math.sqrt(2 * self.save_s * self.between_failures_s) / self.seconds_per_iteration))

    @property
    def between_failures_s(self) -> float:
        """Seconds of training between failures of its nodes; infinite without any."""
        return DAY_S / (self.rates.failures * self.nodes) if self.rates.failures else math.inf

    @property
    def silent_s(self) -> float:
        """Return how long it may log nothing before anyone takes a look."""
        return longest_silence_s(self.seconds_per_iteration, None, self.eval_s + self.save_s, is_starting=False)

    def draw_wait_s(self, chance: random.Random) -> float:
        """Return how long a task waits for its nodes."""
        return _SHAPES[self.is_exclusive].draw_wait_s(chance)

    @property
    def trains_s(self) -> float:
        """For how long a task trains."""
        return self.time_limit_s - EXIT_MARGIN_S


def set_aside(nodes: int, rates: Rates = Rates(), days: float = THREE_MONTHS_DAYS) -> Setting:
    """Nodes set aside for it, 52 for each 48, tasks of 100 hours: as BLOOM had. Iterations of 10 s, as of today's."""
    return Setting(
        name="set aside",
        nodes=nodes,
        partition=nodes * 52 // 48,
        is_exclusive=True,
        seconds_per_iteration=10.0,
        save_s=figures.SAVE_S.value,
        eval_interval=1000,
        eval_s=60.0,
        start_s=(figures.START_S.value / 2, figures.START_S.value * 1.5),
        time_limit_s=100 * HOUR_S,
        tasks=10,
        keep_queued=2,
        rates=rates,
        days=days,
    )


def shared(nodes: int, rates: Rates = Rates(), days: float = THREE_MONTHS_DAYS) -> Setting:
    """In a queue with everybody else, tasks of 20 hours, three times its nodes in the partition: as tr1-13B had."""
    return replace(
        set_aside(nodes, rates, days), name="shared", partition=3 * nodes, is_exclusive=False, time_limit_s=20 * HOUR_S
    )


def bloom(rates: Rates = Rates(), days: float = 108.6) -> Setting:
    """BLOOM at its full batch: 48 of 52 nodes, iterations and evaluations as long as its own."""
    return replace(set_aside(48, rates, days), name="BLOOM", seconds_per_iteration=105.0, eval_s=720.0)
