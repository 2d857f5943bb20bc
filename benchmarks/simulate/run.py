"""The simulated run: tasks that wait for their nodes, and the attempts that each of them makes on them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import msgspec
import simpy

from benchmarks.desk.log import moment
from benchmarks.desk.shapes import EXIT_MARGIN_S, HOUR_S, MINUTE_S
from benchmarks.simulate import deciding
from benchmarks.simulate.cluster import Cluster, Life
from benchmarks.simulate.deciding import Exclusions
from benchmarks.simulate.policies import Way
from benchmarks.simulate.queue import NEWEST, Queue
from benchmarks.simulate.setting import Setting
from benchmarks.simulate.training import Bad, Live, Training
from opsctl.diagnosis.probe.report import NodeReport, chosen
from opsctl.jobs.runner.good_nodes import is_to_be_tested
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import failed_too_often
from opsctl.run.attempts.restart import JobNow, after_failure
from opsctl.run.config.schema import SlurmTable
from opsctl.run.logs.spans import Span
from opsctl.run.state.chains import counted_since

_RESTARTS = SlurmTable(nodes=1, gpus_per_node=1, time="1").restarts
#: A quick probe; how often Slurm looks for nodes.
PROBE_S, _SLURM_LOOKS_S = MINUTE_S, 10 * MINUTE_S


@dataclass
class Tested:
    """A job's knowledge of its nodes from a probe."""

    at: datetime | None = None
    reports: tuple[NodeReport, ...] = ()


class Run:
    """One training under one way to run it."""

    def __init__(
        self,
        env: simpy.Environment,
        setting: Setting,
        way: Way,
        cluster: Cluster,
        chance: Callable[[str], random.Random],
    ) -> None:
        self.env, self.setting, self.way, self.cluster = env, setting, way, cluster
        self.queue = Queue(env, setting)
        self.exclusions = Exclusions(cluster.names, setting.nodes + way.spare(setting.nodes))
        self.failed_on: Counter[str] = Counter()  # how often, as such a person counts
        self.attempts: list[Attempt] = []
        self.spans: list[Span] = []
        self.held: dict[str, int] = {}
        self.saved = 0  # iteration of the last checkpoint
        self.interval = setting.youngs_interval if way.youngs_interval else setting.fixed_interval
        self.live: Live | None = None
        self.told: Callable[[str], None] = lambda _what: None  # what people are told
        self._dice, self._waits = chance("run"), chance("waits")
        self._training = Training(env, setting, way, cluster, self._dice)
        self._probe_dice = chance("probe")
        env.process(self.life())

    def ask(self, what: str) -> None:
        """A person has the live attempt leave ("requeue"), or ends it ("cancel")."""
        if self.live is not None:
            self.live.asked = what
        self.cluster.wake()

    def life(self) -> Life:
        """All tasks, one after the other."""
        while True:
            while not self.queue.waiting:
                yield self.queue.came
            yield self.env.timeout(self.setting.draw_wait_s(self._waits))
            nodes = self._nodes()
            while nodes is None and self.queue.waiting:
                yield self.env.timeout(_SLURM_LOOKS_S)
                nodes = self._nodes()
            if nodes is not None and self.queue.waiting:
                yield from self._task(nodes)

    def _nodes(self) -> tuple[str, ...] | None:
        """Return what Slurm gives the next task now."""
        there, wanted = self.cluster, self.setting.nodes + self.way.spare(self.setting.nodes)
        if there.is_closed or self._time_left_s() < HOUR_S:
            return None
        off = self.exclusions.stay_off(there.down, moment(self.env.now)) if self.way.exclusion else set()
        fit = [name for name in there.names if name not in there.down and name not in off]
        if len(fit) < wanted:
            return None
        return tuple(fit[:wanted] if self.setting.is_exclusive else sorted(self._dice.sample(fit, wanted)))

    def _time_left_s(self) -> float:
        """Until the limit of a task that began now: maintenance that is announced shortens it."""
        return min(self.setting.time_limit_s, self.cluster.maintenance_at - self.env.now)

    def _task(self, nodes: tuple[str, ...]) -> Life:
        """Attempts in one job, for as long as it has nodes to continue with."""
        job_id, array, task = self.queue.start()
        ends_at = self.env.now + self._time_left_s()
        since = counted_since(self.queue.chains, array.chain.submitted_at)
        left: tuple[str, ...] | None = nodes
        tested, ended, restart, in_memory, wanted = Tested(), None, 0, 0, self.setting.nodes
        while left is not None:
            if self.way.brake and failed_too_often(self.attempts[-NEWEST:], since):
                self.queue.cancel_pending()
                self.told("brake")
                break
            opened = Attempt(
                number=len(self.attempts) + 1,
                id=f"{job_id}-{len(self.attempts)}",
                job_id=job_id,
                array_job_id=array.chain.chain,
                array_task=str(task),
                chain_submitted_at=array.chain.submitted_at,
                opened_at=moment(self.env.now),
                iteration_at_start=self.saved,
                restart=restart,
            )
            live = yield from self._attempt(opened, left, wanted, ends_at, tested, ended, in_memory)
            spare, ended = len(left) - wanted, self.attempts[-1]
            is_over = live.is_unfit or nodes[0] in ended.lost_nodes or self.cluster.is_closed
            job = JobNow(
                left,
                live.nodes,
                spare,
                restarts=_RESTARTS if self.way.restarts else 0,
                time_left_s=ends_at - EXIT_MARGIN_S - self.env.now,
                must_leave="the job has ended" if is_over else "",
                fewer=self.setting.fewer if self.way.fewer_nodes else lambda _left: 0,
            )
            decision = after_failure(ended, self.attempts[-NEWEST:], since, job)
            left, wanted = decision.nodes, decision.train_on or wanted
            restart += 1
            has_all = left is not None and (self.way.is_copied or live.used <= set(left))
            in_memory = self._newest_in_memory(live) if has_all else 0
        self.queue.over()

    def _newest_in_memory(self, live: Live) -> int:
        """Return the iteration of the newest snapshot; 0 without."""
        each_s = self.setting.seconds_per_iteration
        every = 0 if math.isinf(self.way.memory_s) else max(1, round(self.way.memory_s / each_s))
        return live.iteration // every * every if every else 0

    def _attempt(
        self,
        opened: Attempt,
        nodes: tuple[str, ...],
        wanted: int,
        ends_at: float,
        tested: Tested,
        before: Attempt | None,
        in_memory: int = 0,
    ) -> Life:
        """One try on `wanted` nodes, closed in the end; returns what it was. before: that the job made before.

        in_memory: the iteration of the snapshot there. It is saved first, so that the start takes longer by a save.
        """
        if in_memory > self.saved:
            self.saved = in_memory
            yield self.env.timeout(self.setting.save_s)
        span = Span(opened.number, opened.job_id, opened.opened_at, self.saved)
        used = nodes[:wanted]
        live = Live(opened, span, used, len(nodes), ends_at - EXIT_MARGIN_S, self.interval, self.saved, self.saved)
        self.attempts.append(opened)
        self.spans.append(span)
        self.held[opened.id] = len(nodes)
        self.live = live
        if self.way.probe and is_to_be_tested(tested.at, before, moment(self.env.now)):
            yield self.env.timeout(PROBE_S)
            self._probe(live, nodes, tested)
        bad = self._picks(live, nodes, wanted, tested)
        if bad is None:
            bad = yield from self._training.train(live)
        self.saved = live.save_begun
        closed = self._closed(live, bad)
        self.attempts[-1], self.live = closed, None
        if bad is not None and bad.node and bad.kind is not None:
            self.cluster.take_its_course(bad.node, bad.kind)
            self.failed_on[bad.node] += 1
        if self.way.exclusion:
            self.exclusions.ended(closed)
        return live

    def _probe(self, live: Live, nodes: tuple[str, ...], tested: Tested) -> None:
        tested.at = live.attempt.opened_at
        tested.reports = deciding.probed(nodes, self.cluster.bad, self.cluster.slow, self._probe_dice)
        if self.way.exclusion:
            self.exclusions.probed(tested.reports, live.attempt.id, moment(self.env.now))

    def _picks(self, live: Live, nodes: tuple[str, ...], wanted: int, tested: Tested) -> Bad | None:
        """Choose among the nodes by what is known of them; too few good ones end the attempt."""
        if tested.at is not None:
            picked = chosen(nodes, wanted, tested.reports)
            if len(picked) < wanted:
                live.is_unfit = True
                return Bad(Ending.FAILED)
            live.nodes, live.used = tuple(picked), frozenset(picked)
        return None

    def _closed(self, live: Live, bad: Bad | None) -> Attempt:
        live.write_line()
        return msgspec.structs.replace(
            live.attempt,
            closed_at=moment(self.env.now),
            closed_by="job",
            reason=bad.reason if bad is not None else Ending.EXIT_DURATION,
            exit_code=0 if bad is None else 1,
            iteration_at_end=live.iteration,
            checkpoint_at_end=self.saved,
            nodes=tuple(sorted(live.used & self.exclusions.accused)),
            lost_nodes=(bad.node,) if bad is not None and bad.node and bad.reason is Ending.NODE_FAILURE else (),
            verdict=bad.verdict if bad is not None else None,
        )
