"""The simulated training: tasks that get nodes, attempts that start, iterate, save, fail, hang and leave."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import simpy

from benchmarks.desk.log import moment
from benchmarks.desk.shapes import EXIT_MARGIN_S, HOUR_S, MINUTE_S
from benchmarks.simulate import deciding, figures
from benchmarks.simulate.cluster import Cluster, Kind, Life
from benchmarks.simulate.deciding import Exclusions
from benchmarks.simulate.policies import Way
from benchmarks.simulate.queue import NEWEST, Queue
from benchmarks.simulate.setting import Setting
from opsctl.attempts.brake import brake_trips
from opsctl.attempts.ending import Ending
from opsctl.attempts.events import Attempt
from opsctl.attempts.verdict import Cause, Verdict
from opsctl.job.good_nodes import nodes_left
from opsctl.logs.spans import Span
from opsctl.records.chains import counted_since

#: From a crash to the end of its step; a quick probe; how often Slurm looks for nodes.
TEARDOWN_S, PROBE_S, _SLURM_LOOKS_S = 2 * MINUTE_S, MINUTE_S, 10 * MINUTE_S
#: Times that are so near are one: sums of them are rounded.
_INSTANT_S = 1e-3
#: What triage calls the failures of each kind, and how sure it is.
_CAUSES = {
    Kind.GPU: (Cause.GPU_ECC, 0.9),
    Kind.NODE: (Cause.NODE_FAILURE, 0.9),
    Kind.NETWORK: (Cause.NETWORK, 0.7),
}


@dataclass(frozen=True)
class Bad:
    """How an attempt ended badly."""

    reason: Ending
    node: str = ""
    kind: Kind | None = None
    verdict: Verdict | None = None


@dataclass
class Live:
    """The attempt that has its nodes."""

    attempt: Attempt
    span: Span
    nodes: tuple[str, ...]  # that it trains on
    held: int  # nodes of its job
    leaves_at: float
    interval: int
    save_begun: int  # iteration of the last checkpoint
    iteration: int
    into_s: float = 0.0  # of the next iteration, at the speed now
    line_s: float = 0.0  # that iterations took since the last line of the log
    is_training: bool = False
    hung_since: float | None = None
    used: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.used = frozenset(self.nodes)

    def write_line(self) -> None:
        """What was done since the last line."""
        before = self.span.iterations[-1] if self.span.iterations else self.span.begins_at
        if self.iteration > before:
            self.span.iterations.append(self.iteration)
            self.span.seconds.append(self.line_s)
            self.line_s = 0.0


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
        self.asked = ""  # what a person has asked the live attempt for: "requeue", "cancel"
        self.told: Callable[[str], None] = lambda _what: None  # what people are told
        self._dice, self._waits = chance("run"), chance("waits")
        self._probe_dice = chance("probe")
        env.process(self.life())

    def ask(self, what: str) -> None:
        """A person has the live attempt leave, or ends it."""
        self.asked = what
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
        """What Slurm gives the next task now."""
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
        """Attempts in one job, for as long as it has nodes to go on with."""
        job_id, array, task = self.queue.start()
        ends_at = self.env.now + self._time_left_s()
        since = counted_since(self.queue.chains, array.chain.submitted_at)
        left: tuple[str, ...] | None = nodes
        while left is not None:
            if self.way.brake and brake_trips(self.attempts[-NEWEST:], since):
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
            )
            live = yield from self._attempt(opened, left, ends_at)
            spare, ended = len(left) - self.setting.nodes, self.attempts[-1]
            job_is_lost = nodes[0] in ended.lost_nodes or self.cluster.is_closed
            left = nodes_left(left, live.nodes, spare, ended) if ended.exit_code and not job_is_lost else None
        self.queue.over()

    def _attempt(self, opened: Attempt, nodes: tuple[str, ...], ends_at: float) -> Life:
        """One try, which is closed in the end; returns what it was."""
        span = Span(opened.number, opened.job_id, opened.opened_at, self.saved)
        used = nodes[: self.setting.nodes]
        live = Live(opened, span, used, len(nodes), ends_at - EXIT_MARGIN_S, self.interval, self.saved, self.saved)
        self.attempts.append(opened)
        self.spans.append(span)
        self.held[opened.id] = len(nodes)
        self.live, self.asked = live, ""
        bad: Bad | None = None
        if self.way.probe:
            yield self.env.timeout(PROBE_S)
            bad = self._picked(live, nodes)
        if bad is None:
            bad = yield from self._train(live)
        closed = self._closed(live, bad)
        self.attempts[-1], self.live = closed, None
        if bad is not None and bad.node and bad.kind is not None:
            self.cluster.take_its_course(bad.node, bad.kind)
            self.failed_on[bad.node] += 1
        if self.way.exclusion:
            self.exclusions.ended(closed)
        return live

    def _picked(self, live: Live, nodes: tuple[str, ...]) -> Bad | None:
        """Choose among the nodes by a probe; too few good ones end the attempt."""
        picked, reports = deciding.probed(
            nodes, self.cluster.bad, self.cluster.slow, self.setting.nodes, self._probe_dice
        )
        if self.way.exclusion:
            self.exclusions.probed(reports, live.attempt.id, moment(self.env.now))
        if len(picked) < self.setting.nodes:
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

    def _train(self, live: Live) -> Life:
        """Start, and iterate until it leaves (None) or ends badly."""
        start_s = self._dice.uniform(*self.setting.start_s)
        if self.cluster.is_broken:
            yield self.env.timeout(start_s)
            return Bad(Ending.FAILED)
        bad = yield from self._held_up(live, start_s + self.cluster.stall_s)
        if bad is not None:
            return bad
        live.span.trains_from = moment(self.env.now)
        live.is_training = True
        while True:
            bad = yield from self._stretch(live)
            if bad is not None:
                return bad
            if self.asked == "requeue" or self.env.now >= live.leaves_at - _INSTANT_S:
                return (yield from self._save(live)) if live.iteration > live.save_begun else None
            if live.iteration - live.save_begun >= live.interval:
                bad = yield from self._save(live)
            if bad is None and live.iteration % self.setting.eval_interval == 0 and live.into_s == 0.0:
                began = self.env.now
                bad = yield from self._held_up(live, self.setting.eval_s)
                live.span.evaluations_s.append(self.env.now - began)
            if bad is not None:
                return bad

    def _stretch(self, live: Live) -> Life:
        """Iterate until the next save or evaluation, or until something happens."""
        every, goal = self.setting.eval_interval, live.save_begun + live.interval
        goal = min(goal, (live.iteration // every + 1) * every)
        each_s = self.setting.seconds_per_iteration * self.cluster.slowness(live.used)
        to_goal_s = (goal - live.iteration) * each_s - live.into_s
        to_strike_s = self.cluster.strike_in_s(live.used)
        lasts_s = max(0.0, min(to_goal_s, to_strike_s, live.leaves_at - self.env.now))
        began, timer = self.env.now, self.env.timeout(lasts_s)
        yield timer | self.cluster.changed
        passed_s = self.env.now - began
        if timer.processed and lasts_s == to_goal_s:
            live.line_s += (goal - live.iteration) * each_s
            live.iteration, live.into_s = goal, 0.0
            return self._interrupted()
        done = int((live.into_s + passed_s) / each_s)
        live.line_s += done * each_s
        live.iteration, live.into_s = live.iteration + done, live.into_s + passed_s - done * each_s
        if timer.processed and lasts_s == to_strike_s:
            return (yield from self._struck(live))
        return self._interrupted()

    def _interrupted(self) -> Bad | None:
        """What others have done to the training."""
        if self.cluster.is_closed:
            return Bad(Ending.NODE_FAILURE)
        return Bad(Ending.CANCELLED) if self.asked == "cancel" else None

    def _held_up(self, live: Live, seconds: float) -> Life:
        """Time in which it does not iterate, and may be struck."""
        strike_s = self.cluster.strike_in_s(live.used)
        yield self.env.timeout(min(seconds, strike_s))
        return (yield from self._struck(live)) if strike_s < seconds else self._interrupted()

    def _save(self, live: Live) -> Life:
        """A checkpoint; where the file system stands still, for as long, unless that is taken for a hang."""
        if self.cluster.is_broken:
            return Bad(Ending.FAILED)
        began, takes_s = self.env.now, self.setting.save_s + self.cluster.stall_s
        patience_s, reason, verdict = self._patience("")
        if takes_s > patience_s:
            yield self.env.timeout(patience_s)
            return Bad(reason, verdict=verdict)
        bad = yield from self._held_up(live, takes_s)
        if bad is None:
            live.write_line()
            live.span.saves_s.append(self.env.now - began)
            live.save_begun = self.saved = live.iteration
        return bad

    def _struck(self, live: Live) -> Life:
        """A failure: the step ends, or hangs until somebody ends it."""
        node, kind, hangs = self.cluster.strike(live.nodes, live.used)
        cause, sure = _CAUSES.get(kind, (Cause.UNKNOWN, 0.0))
        named = cause is not Cause.UNKNOWN and self._dice.random() < figures.NODE_NAMED.value
        verdict = deciding.said_by_triage(cause, node, sure) if named else None
        if not hangs or kind is Kind.NODE:
            yield self.env.timeout(TEARDOWN_S)
            reason = Ending.NODE_FAILURE if kind is Kind.NODE else Ending.FAILED
            return Bad(reason, node, kind, verdict)
        live.hung_since = self.env.now
        odd = node if kind in _CAUSES else ""
        patience_s, reason, of_hang = self._patience(odd)
        ends_at = min(live.leaves_at + EXIT_MARGIN_S, self.env.now + patience_s)
        if ends_at == live.leaves_at + EXIT_MARGIN_S:
            reason = Ending.TIME_LIMIT
        while self.env.now < ends_at - _INSTANT_S and self.asked != "cancel" and not self.cluster.is_closed:
            yield self.env.timeout(ends_at - self.env.now) | self.cluster.changed
        live.hung_since = None
        if self.asked == "cancel":
            return Bad(Ending.CANCELLED, node, kind)
        return Bad(reason, node, kind, (verdict or of_hang) if reason is Ending.HANG else None)

    def _patience(self, odd: str) -> tuple[float, Ending, Verdict | None]:
        """(how long it may stand still until it is ended, as what, what is said of it); odd: who is waited for."""
        if not self.way.hang_watch:
            return self.way.watchdog_s, Ending.FAILED, None
        patience_s, verdict = deciding.silence_of(self.setting.silent_s, odd)
        return patience_s, Ending.HANG, verdict
