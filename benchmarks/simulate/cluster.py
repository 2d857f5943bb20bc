"""The simulated cluster: which nodes are down, broken or slow, when it is closed, and when its file system stalls."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Generator, Sequence
from enum import StrEnum
from typing import Any

import simpy

from benchmarks.desk.shapes import DAY_S, HOUR_S
from benchmarks.simulate import figures
from benchmarks.simulate.setting import Setting

#: What SimPy runs.
Life = Generator[simpy.Event, Any, Any]
_SHARES = (
    figures.GPU_SHARE.value,
    figures.NODE_SHARE.value,
    figures.NETWORK_SHARE.value,
    figures.SOFTWARE_SHARE.value,
    figures.HANG_SHARE.value,
)
_MAINTENANCE_S, _EMERGENCY_S, _STALL_MOST_S = 12 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S


class Kind(StrEnum):
    """The causes that end, or hang, a training."""

    GPU = "gpu"
    NODE = "node"
    NETWORK = "network"
    SOFTWARE = "software"
    HANG = "hang"


class Cluster:
    """Its nodes and what becomes of them. `changed` is an event that is over whenever a training has to look up."""

    def __init__(self, env: simpy.Environment, setting: Setting, chance: Callable[[str], random.Random]) -> None:
        self.env, self.setting, self.rates = env, setting, setting.rates
        self.names = tuple(f"n{number:05d}" for number in range(setting.partition))
        self.down: set[str] = set()
        self.bad: set[str] = set()  # with a GPU that fails again and again
        self.slow: dict[str, float] = {}
        self.is_broken = False  # something of the run's own: nothing starts until a person fixes it
        self.closed_until, self.stalled_until = 0.0, 0.0
        self.maintenance_at = math.inf  # the next that is announced
        self.changed = env.event()
        self._chance = chance("strikes")
        dice = chance("slow")
        for name in self.names:
            if dice.random() < self.rates.slow_share:
                self.slow[name] = 1.0 + dice.uniform(0.5, 1.5) * figures.SLOW_RATIO.value
        for life, every in (
            (self._maintenance, self.rates.maintenance_every_s),
            (self._emergencies, self.rates.emergency_every_s),
            (self._stalls, self.rates.stalls_every_s),
            (self._breaks, self.rates.broken_every_s),
            (self._slows, DAY_S / (self.rates.slowed * setting.partition) if self.rates.slowed else math.inf),
        ):
            if math.isfinite(every):
                env.process(life(chance(life.__name__), every))

    @property
    def is_closed(self) -> bool:
        """Return whether nothing may start."""
        return self.env.now < self.closed_until

    @property
    def stall_s(self) -> float:
        """For how long the file system will still not answer."""
        return max(0.0, self.stalled_until - self.env.now)

    def slowness(self, nodes: Collection[str]) -> float:
        """By how much the slowest of them slows all of them down."""
        return max((ratio for name, ratio in self.slow.items() if name in nodes), default=1.0)

    def strike_in_s(self, nodes: Collection[str]) -> float:
        """When the next failure strikes a training on these nodes, if they stay as they are."""
        rate = self.rates.failures * len(nodes) / DAY_S + self._bad_rate(nodes)
        return self._chance.expovariate(rate) if rate else math.inf

    def strike(self, nodes: Sequence[str], used: Collection[str]) -> tuple[str, Kind, bool]:
        """(the node that it strikes, what it is, whether the training hangs after it)."""
        dice, own = self._chance, self.rates.failures * len(nodes) / DAY_S
        again = self._bad_rate(used)
        if dice.random() * (own + again) < again:
            node, kind = dice.choice(sorted(name for name in self.bad if name in used)), Kind.GPU
        else:
            node, kind = dice.choice(nodes), dice.choices(list(Kind), _SHARES)[0]
        return node, kind, kind is Kind.HANG or dice.random() < self.rates.stuck_share

    def take_its_course(self, node: str, kind: Kind) -> None:
        """Decide the fate of a node that failed."""
        if kind is Kind.NODE or (kind is Kind.GPU and self._chance.random() >= self.rates.stays_share):
            self.take_out(node)
        elif kind is Kind.GPU:
            self.bad.add(node)

    def take_out(self, node: str) -> None:
        """A user fixes it: it is away meanwhile, and as it should be afterwards."""
        if node not in self.down:
            self.down.add(node)
            self.env.process(self._mended(node))

    def wake(self) -> None:
        """Wake the training."""
        self.changed.succeed()
        self.changed = self.env.event()

    def _bad_rate(self, nodes: Collection[str]) -> float:
        return sum(name in nodes for name in self.bad) / figures.FAILS_AGAIN_S.value

    def _mended(self, node: str) -> Life:
        yield self.env.timeout(self._chance.uniform(0.5, 1.5) * figures.REPAIR_S.value)
        self.down.discard(node)
        self.bad.discard(node)
        self.slow.pop(node, None)

    def _maintenance(self, dice: random.Random, every_s: float) -> Life:
        while True:
            self.maintenance_at = self.env.now + dice.uniform(0.7, 1.3) * every_s
            yield self.env.timeout(self.maintenance_at - self.env.now)
            self.closed_until = max(self.closed_until, self.env.now + _MAINTENANCE_S)
            yield self.env.timeout(_MAINTENANCE_S)

    def _emergencies(self, dice: random.Random, every_s: float) -> Life:
        while True:
            yield self.env.timeout(dice.expovariate(1 / every_s))
            self.closed_until = max(self.closed_until, self.env.now + _EMERGENCY_S)
            self.wake()

    def _stalls(self, dice: random.Random, every_s: float) -> Life:
        while True:
            yield self.env.timeout(dice.expovariate(1 / every_s))
            lasts_s = min(dice.lognormvariate(math.log(figures.STALL_S.value), 1.0), _STALL_MOST_S)
            self.stalled_until = self.env.now + lasts_s
            yield self.env.timeout(lasts_s)

    def _breaks(self, dice: random.Random, every_s: float) -> Life:
        while True:
            yield self.env.timeout(dice.expovariate(1 / every_s))
            self.is_broken = True

    def _slows(self, dice: random.Random, every_s: float) -> Life:
        while True:
            yield self.env.timeout(dice.expovariate(1 / every_s))
            self.slow[dice.choice(self.names)] = 1.0 + dice.uniform(0.5, 1.5) * figures.SLOWED_BY.value
            self.wake()
