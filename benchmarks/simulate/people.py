"""The person who looks after the training: told by alerts, or looking by himself. What he does takes him time too."""

from __future__ import annotations

import math
import random
from collections import Counter

import simpy

from benchmarks.desk.log import moment
from benchmarks.desk.shapes import DAY_S, HOUR_S, MINUTE_S
from benchmarks.simulate import deciding
from benchmarks.simulate.cluster import Life
from benchmarks.simulate.run import Run
from opsctl.diagnosis.goodput.account import stays
from opsctl.diagnosis.goodput.report import save_interval
from opsctl.run.attempts.ending import Ending
from opsctl.run.state.chains import REFILL

#: Who is told by day comes within half an hour, by night in the morning.
_DAY = (8 * HOUR_S, 22 * HOUR_S)
_COMES_S = 30 * MINUTE_S
#: What mending a full disk takes; finding a slow node by leaving out some at a time, as in April 2022, its restarts.
_MENDS_S, _SEARCH_S, _SEARCH_RESTARTS = HOUR_S, DAY_S, 6
#: By how much a training has to be slower for a person to see it; after how long a silence he takes it to hang.
_SEES_SLOWER, _SEES_HANG_S = 1.04, HOUR_S
#: Looks at the same slow node by the check at first; what none of them shows is looked at once a day from then on.
_LOOKS_AT_SLOW, _LOOKS_A_DAY = 3, 24


class Person:
    """One who is told, and the regular looks that tell him."""

    def __init__(self, env: simpy.Environment, run: Run, chance: random.Random) -> None:
        self.env, self.run, self.way, self.cluster = env, run, run.way, run.cluster
        self._dice = chance
        self._is_coming = self._is_searching = False
        self._slow: set[str] = set()  # nodes that the check has found and no one has dealt with
        self._looked_at: Counter[str] = Counter()  # nodes, by the check
        run.told = self._tell
        for _ in range(1 + run.setting.keep_queued):
            run.queue.submit()
        if self.way.refill or self.way.alerts or self.way.slow_nodes:
            env.process(self._watch())
        if math.isfinite(self.way.looks_every_s):
            env.process(self._looks())
        if self.way.save_interval:
            env.process(self._reads_the_report())
        if self.way.exclusion:
            env.process(self._reports_excluded())

    def _watch(self) -> Life:
        """The cron's hourly looks."""
        while True:
            yield self.env.timeout(deciding.LOOK_S)
            run, live = self.run, self.run.live
            if self.way.refill:
                missing = run.queue.missing(run.attempts, self.way.brake)
                for _ in range(missing or 0):
                    run.queue.submit(REFILL)
            failed = bool(run.attempts) and run.attempts[-1].reason == Ending.FAILED
            silent = live is not None and live.hung_since is not None
            if run.queue.is_empty or (self.cluster.is_broken and failed):
                self._tell("nothing trains")
            if silent and live is not None and self.env.now - (live.hung_since or 0.0) > run.setting.silent_s:
                self._tell("silence")
            if self.way.slow_nodes:
                self._looks_for_slow_nodes()

    def _looks_for_slow_nodes(self) -> None:
        run, live = self.run, self.run.live
        if live is None or not live.is_training or live.hung_since is not None:
            return
        slow = [name for name in self.cluster.slow if name in live.used]
        self._looked_at.update(slow)
        due = {
            name
            for name in slow
            if self._looked_at[name] <= _LOOKS_AT_SLOW or self._looked_at[name] % _LOOKS_A_DAY == 0
        }
        if not due:
            return
        each_s, percent = run.setting.seconds_per_iteration, self.way.slower_node_percent
        for found in deciding.found_slow(live.nodes, self.cluster.slow, due, each_s, self._dice, percent):
            if self.way.exclusion:
                run.exclusions.slow(found, live.attempt.id, moment(self.env.now))
            self._slow.add(found.node)
        if self._slow:
            self._tell("slow nodes")

    def _tell(self, _what: str) -> None:
        if self.way.alerts and not self._is_coming:
            self._is_coming = True
            self.env.process(self._comes())

    def _comes(self) -> Life:
        """He comes and does what is to be done, whatever it was that he was told of."""
        of_day = self.env.now % DAY_S
        asleep_s = 0.0 if _DAY[0] <= of_day < _DAY[1] else (_DAY[0] - of_day) % DAY_S
        yield self.env.timeout(asleep_s + _COMES_S)
        yield from self._mends()
        self._is_coming = False

    def _mends(self) -> Life:
        run = self.run
        if self.cluster.is_broken:
            yield self.env.timeout(_MENDS_S)
            self.cluster.is_broken = False
        live = run.live
        if live is not None and live.hung_since is not None:
            if self.env.now - live.hung_since > min(_SEES_HANG_S, run.setting.silent_s):
                run.ask("cancel")
        elif live is not None and self._slow:
            for node in sorted(self._slow):
                self._reports(node)
            # Where the queue is long, a slower job that has its nodes beats one that waits for others.
            if run.setting.is_exclusive and not self._slow.isdisjoint(live.used):
                run.ask("requeue")
            self._slow.clear()
        if run.queue.is_empty:
            run.queue.submit()

    def _reports(self, node: str) -> None:
        """Have it fixed, until when it is given to no one."""
        self.cluster.take_out(node)

    def _looks(self) -> Life:
        """Without the product: what is seen in the queue and at the end of the log."""
        while True:
            yield self.env.timeout(self.way.looks_every_s)
            yield from self._mends()
            while len(self.run.queue.waiting) < 2:
                self.run.queue.submit()
            if self.way.seeks:
                self._keeps_out_who_failed_twice()
                if self.run.setting.is_exclusive:  # elsewhere each of his restarts would wait in the queue again
                    self._sees_a_slower_training()

    def _keeps_out_who_failed_twice(self) -> None:
        for node in [name for name, times in self.run.failed_on.items() if times >= 2]:
            self._reports(node)
            self.run.failed_on.pop(node)

    def _sees_a_slower_training(self) -> None:
        live = self.run.live
        if live is not None and live.is_training and not self._is_searching:
            slow = [name for name, ratio in self.cluster.slow.items() if name in live.used and ratio > _SEES_SLOWER]
            if slow:
                self._is_searching = True
                self.env.process(self._searches(max(slow, key=lambda name: self.cluster.slow[name])))

    def _searches(self, node: str) -> Life:
        """Leave out some nodes at a time, until it is fast again."""
        for _ in range(_SEARCH_RESTARTS):
            yield self.env.timeout(_SEARCH_S / _SEARCH_RESTARTS)
            if self.run.live is not None and self.run.live.is_training:
                self.run.ask("requeue")
        self._reports(node)
        self._is_searching = False

    def _reads_the_report(self) -> Life:
        """Each morning, whether another save interval would lose less: `opsctl attempts --report`, then `revise`."""
        run, each_s = self.run, self.run.setting.seconds_per_iteration
        yield self.env.timeout(_DAY[0] + HOUR_S)
        while True:
            placed = stays(run.attempts, run.spans, moment(self.env.now))
            best = save_interval(placed, each_s, run.interval).iterations_best
            run.interval = best or run.interval
            yield self.env.timeout(DAY_S)

    def _reports_excluded(self) -> Life:
        """Each morning: `opsctl nodes report --send`."""
        yield self.env.timeout(_DAY[0] + HOUR_S)
        while True:
            for node in sorted(self.run.exclusions.standing(moment(self.env.now))):
                self._reports(node)
            yield self.env.timeout(DAY_S)
