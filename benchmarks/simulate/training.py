"""One attempt at training: it starts, iterates, saves, is struck, hangs and leaves."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import simpy

from benchmarks.desk.log import moment
from benchmarks.desk.shapes import EXIT_MARGIN_S, MINUTE_S
from benchmarks.simulate import deciding, figures
from benchmarks.simulate.cluster import Cluster, Kind, Life
from benchmarks.simulate.policies import Way
from benchmarks.simulate.setting import Setting
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import Cause, Verdict
from opsctl.run.logs.spans import Span

#: From a crash to the end of its step.
TEARDOWN_S = 2 * MINUTE_S
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
    """The bad end of an attempt."""

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
    is_unfit: bool = False  # too few of its nodes are good
    asked: str = ""  # what a person has asked it for: "requeue", "cancel"
    used: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.used = frozenset(self.nodes)

    def write_line(self) -> None:
        """Log the progress since the last line."""
        before = self.span.iterations[-1] if self.span.iterations else self.span.begins_at
        if self.iteration > before:
            self.span.iterations.append(self.iteration)
            self.span.seconds.append(self.line_s)
            self.line_s = 0.0


class Training:
    """The actions of attempts between their allocation and their end."""

    def __init__(
        self, env: simpy.Environment, setting: Setting, way: Way, cluster: Cluster, dice: random.Random
    ) -> None:
        self.env, self.setting, self.way, self.cluster, self._dice = env, setting, way, cluster, dice

    def train(self, live: Live) -> Life:
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
            if live.asked == "requeue" or self.env.now >= live.leaves_at - _INSTANT_S:
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
        on_fewer = self.setting.nodes / len(live.nodes)
        each_s = self.setting.seconds_per_iteration * on_fewer * self.cluster.slowness(live.used)
        to_goal_s = (goal - live.iteration) * each_s - live.into_s
        to_strike_s = self.cluster.strike_in_s(live.used)
        lasts_s = max(0.0, min(to_goal_s, to_strike_s, live.leaves_at - self.env.now))
        began, timer = self.env.now, self.env.timeout(lasts_s)
        yield timer | self.cluster.changed
        passed_s = self.env.now - began
        if timer.processed and lasts_s == to_goal_s:
            live.line_s += (goal - live.iteration) * each_s
            live.iteration, live.into_s = goal, 0.0
            return self._interrupted(live)
        done = int((live.into_s + passed_s) / each_s)
        live.line_s += done * each_s
        live.iteration, live.into_s = live.iteration + done, live.into_s + passed_s - done * each_s
        if timer.processed and lasts_s == to_strike_s:
            return (yield from self._struck(live))
        return self._interrupted(live)

    def _interrupted(self, live: Live) -> Bad | None:
        """Return what others have done to the training."""
        if self.cluster.is_closed:
            return Bad(Ending.NODE_FAILURE)
        return Bad(Ending.CANCELLED) if live.asked == "cancel" else None

    def _held_up(self, live: Live, seconds: float) -> Life:
        """Time in which it does not iterate, and may be struck."""
        strike_s = self.cluster.strike_in_s(live.used)
        yield self.env.timeout(min(seconds, strike_s))
        return (yield from self._struck(live)) if strike_s < seconds else self._interrupted(live)

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
            live.save_begun = live.iteration
        return bad

    def _struck(self, live: Live) -> Life:
        """A failure: the step ends, or hangs until a user ends it."""
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
        while self.env.now < ends_at - _INSTANT_S and live.asked != "cancel" and not self.cluster.is_closed:
            yield self.env.timeout(ends_at - self.env.now) | self.cluster.changed
        live.hung_since = None
        if live.asked == "cancel":
            return Bad(Ending.CANCELLED, node, kind)
        return Bad(reason, node, kind, (verdict or of_hang) if reason is Ending.HANG else None)

    def _patience(self, odd: str) -> tuple[float, Ending, Verdict | None]:
        """(how long it may stand still until it is ended, as what, what is said of it); odd: who is waited for."""
        if not self.way.hang_watch:
            return self.way.watchdog_s, Ending.FAILED, None
        patience_s, verdict = deciding.silence_of(self.setting.silent_s, odd)
        return patience_s, Ending.HANG, verdict
