"""Checks of the nodes: those of the running job, those that the next job may be given, slow ones, clocks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from opsctl.monitoring.check import Settings, check
from opsctl.monitoring.finding import Finding, Severity, finding, warning
from opsctl.monitoring.series import middle, spread
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.attempts.ending import Ending
from trainer.formats.attempt.node_samples import RankTiming

#: Nodes, and clocks, that have a finding each; more are counted.
_NAMED, _CLOCKS_NAMED = 3, 4
#: nodes: attempts that count against a node ended within this time, are among the newest so many, and so many failed.
_RECENT, _NEWEST, _FAILURES = timedelta(days=3), 6, 2
_FAILED = frozenset({Ending.FAILED, Ending.SIGNAL, Ending.HANG, Ending.NODE_FAILURE, Ending.OUT_OF_MEMORY})
#: slow_node: the time that is compared has so many parts, each of one stretch of iterations at least, and so many
#: seconds.
PARTS, SECONDS = 5, 10.0
#: slow_node: how much longer a node must take at least: of two or three, and where a stage has MANY_OTHERS or fewer.
FEW_NODES, OF_FEW, OF_SOME = 4, 0.25, 0.05
#: slow_node: a node has to be so many times farther off than the others are from each other; the first where many tell
#: how far that is, which are those of its stage, or of all stages together. Three others agree by chance too often: of
#: a pipeline of 12 stages of 4, whose nodes differ by 2 % for good and nothing else, four checks of five named one.
MANY_OTHERS, NOISE_OF_MANY, NOISE = 16, 4.0, 5.0


@check(Part.QUEUE | Part.NODES | Part.ATTEMPTS, can_do_without=Part.ATTEMPTS)
def nodes(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check that the training's nodes are healthy.

    1: one of them is drained, down or failing; or it is suspect, because Slurm lost it during an attempt of the last
    days, or because two of the last attempts failed on it first.
    """
    job = snapshot.running
    if job is None:
        return
    bad = [node for node in snapshot.nodes if node.is_out_of_service]
    for node in bad[:_NAMED]:
        yield warning(
            f"node {node.name} of the running job is {node.state}{f': {node.reason}' if node.reason else ''}",
            node.name,
            evidence=(f"sinfo: {node.name} {node.state}, job {job.display_id} runs on it",),
            todo=f"sinfo -R -n {node.name}; keep the next job off it: opsctl exclude add {node.name} --why TEXT",
        )
    if len(bad) > _NAMED:
        text = f"and {len(bad) - _NAMED} more nodes of the running job are out of service: sinfo -R"
        yield warning(text, "more", todo="sinfo -R")
    for name, why in _suspects(snapshot, {node.name for node in bad}).items():
        tests = f"test it: opsctl probe --nodes 1 --nodelist {name}; exclude it: opsctl exclude add {name} --why TEXT"
        yield warning(f"node {name} of the running job is suspect: {why}", name, evidence=(why,), todo=tests)


def _suspects(snapshot: Snapshot, bad: set[str]) -> dict[str, str]:
    """Return node of the running job -> what counts against it in earlier attempts, without those that are `bad`."""
    present = {node.name for node in snapshot.nodes}
    since = snapshot.now - _RECENT
    recent = [
        one
        for one in snapshot.attempts[-_NEWEST:]
        if one.closed_at is not None and one.closed_at >= since and one.reason in _FAILED
    ]
    lost = {name: one.number for one in recent for name in one.lost_nodes}
    # A fault of the program itself mostly shows on the first node, where rank 0 is: that counts against no node.
    first = Counter(
        one.first_failure.node
        for one in recent
        if one.first_failure is not None and one.first_failure.node not in one.nodes[:1]
    )
    found = {name: f"Slurm lost it during attempt {number}" for name, number in lost.items() if name in present}
    for name, times in first.items():
        if times >= _FAILURES and name in present and name not in found:
            found[name] = f"{times} of the last {len(recent)} attempts that failed did so on it first"
    return {name: why for name, why in list(found.items())[:_NAMED] if name not in bad}


@check(Part.PARTITION | Part.QUEUE | Part.PROGRESS)
def spare_nodes(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check that the next task finds enough healthy nodes.

    2: the partition has fewer than the run needs, and nothing runs. 1: the run trains, and could not start again; or
    there are fewer than `[watch] spare_nodes` more than it needs. 3: Slurm does not report it.
    """
    seen, spare, running = snapshot.partition, settings.watch.spare_nodes, snapshot.running
    needs = running.node_count if running is not None else settings.nodes
    # On a cluster without a default partition it is not known which nodes the run may be given.
    if seen is None or not needs or snapshot.is_finished or seen.healthy >= needs + spare:
        return
    is_short = seen.healthy < needs
    cannot_start = is_short and running is None
    yield finding(
        Severity.CRITICAL if cannot_start else Severity.WARNING,
        f"{seen.healthy} of {seen.total} nodes of {seen.name} are healthy, and the run needs {needs}"
        + ("" if is_short else f" with {spare} to spare"),
        alert=settings.team if cannot_start else None,
        evidence=(f"not healthy: {seen.example}" if seen.example else "",),
        todo=f"sinfo -R -p {seen.name}; opsctl submit --nodes N runs on fewer",
    )


@dataclass(frozen=True)
class SlowNode:
    """A node that all wait for."""

    node: str
    stage: int
    ratio: float  # of its own time to that of the others, the middle of the newest stretches
    own_s: float  # of an iteration
    others_s: float
    others: int  # nodes that it is compared with
    first: int  # iterations that this is taken from
    last: int
    at: datetime | None  # of the newest line

    @property
    def words(self) -> str:
        """The numbers of the comparison."""
        stage = f" of stage {self.stage}" if self.stage else ""
        others = f"{self.others_s:.4g} s of the others ({self.others} node{'s' if self.others > 1 else ''})"
        return (
            f"its ranks{stage} compute {self.own_s:.4g} s an iteration, {self.ratio:.2f} times the {others}, "
            f"iterations {self.first} to {self.last}"
        )


#: Of one pipeline stage: the last iteration of a stretch -> node -> its ranks' seconds of an iteration.
_Stretches = dict[int, dict[str, list[float]]]


@dataclass(frozen=True)
class _Stage:
    """The nodes of one pipeline stage, each beside the others; of each a number for each of the newest stretches."""

    number: int
    lasts: Sequence[int]  # the stretches' last iterations
    own_s: dict[str, list[float]]
    others_s: dict[str, list[float]]  # the middle of the other nodes
    ratios: dict[str, list[float]]  # of the two


def slow_nodes(timings: Iterable[RankTiming], slower_node_percent: float) -> list[SlowNode]:
    """Return the nodes that were slow during all of the newest time, the slowest first. Pure.

    Nodes are compared within a pipeline stage, because stages differ by design. The value of a node is the median of
    its ranks there. It is compared with the median of the other nodes: otherwise one slow node of two would be half of
    the norm.
    """
    newest: dict[tuple[int, int, int], RankTiming] = {}
    for one in timings:
        if one.iterations > 0 and one.own_s > 0.0:
            newest[one.stage, one.iteration, one.rank] = one  # of an iteration that was done twice the later counts
    times: dict[int, _Stretches] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    lasted_s: dict[int, float] = {}
    for (stage, last, _), one in newest.items():
        times[stage][last][one.node].append(one.own_s / one.iterations)
        lasted_s[last] = max(lasted_s.get(last, 0.0), one.step_s)
    at = max((one.at for one in newest.values() if one.at is not None), default=None)
    tried = [_stage(number, stretches, lasted_s) for number, stretches in times.items()]
    stages = [there for there in tried if there is not None]
    of_all = [middle(ratios) for there in stages for ratios in there.ratios.values()]
    least = max(slower_node_percent / 100.0, NOISE_OF_MANY * spread(of_all) if len(of_all) > MANY_OTHERS else 0.0)
    worst: dict[str, SlowNode] = {}
    for there in stages:
        for slow in _slow_in(there, least, at):
            if slow.node not in worst or slow.ratio > worst[slow.node].ratio:
                worst[slow.node] = slow
    return sorted(worst.values(), key=lambda one: -one.ratio)


def _stage(number: int, stretches: _Stretches, lasted_s: dict[int, float]) -> _Stage | None:
    """Return the times of a stage; None without other nodes to compare with, or with too little time yet."""
    nodes = sorted(set().union(*stretches.values()))
    lasts = _newest([last for last in sorted(stretches) if len(stretches[last]) == len(nodes)], lasted_s)
    if len(nodes) < 2 or not lasts:
        return None
    own_s = {node: [middle(stretches[last][node]) for last in lasts] for node in nodes}
    whole = [sorted(own_s[node][place] for node in nodes) for place in range(len(lasts))]
    others_s = {node: [_middle_without(*pair) for pair in zip(whole, own_s[node], strict=True)] for node in nodes}
    ratios = {node: [own / usual for own, usual in zip(own_s[node], others_s[node], strict=True)] for node in nodes}
    return _Stage(number, lasts, own_s, others_s, ratios)


def _slow_in(stage: _Stage, least: float, at: datetime | None) -> Iterator[SlowNode]:
    """Yield the nodes of a stage that are slower by more than `least`, and by more than the others differ."""
    nodes, lasts = list(stage.own_s), stage.lasts
    at_least, floor = (NOISE_OF_MANY, 0.0) if len(nodes) > MANY_OTHERS else (NOISE, OF_SOME)
    least = max(least, OF_FEW if len(nodes) < FEW_NODES else floor)
    for node, ratios in stage.ratios.items():
        by = min(middle(part) for part in _parts(ratios)) - 1.0
        # The others' spread is asked for only where it may matter: it costs a sort of all of them.
        if by <= least:
            continue
        of_others = [[stage.own_s[other][place] for other in nodes if other != node] for place in range(len(lasts))]
        if by > at_least * middle(spread(others) / middle(others) for others in of_others):
            usual = middle(ratios), middle(stage.own_s[node]), middle(stage.others_s[node]), len(nodes) - 1
            yield SlowNode(node, stage.number, *usual, lasts[0], lasts[-1], at)


def _middle_without(ascending: Sequence[float], one: float) -> float:
    """Return the median of all values except `one`, which is among them, in logarithmic time."""
    place, rest = bisect_left(ascending, one), len(ascending) - 1

    def at(index: int) -> float:
        return ascending[index if index < place else index + 1]

    return at(rest // 2) if rest % 2 else at(rest // 2 - 1) + 0.5 * (at(rest // 2) - at(rest // 2 - 1))


def _newest(lasts: Sequence[int], lasted_s: dict[int, float]) -> Sequence[int]:
    """Return the newest stretches that total PARTS and SECONDS; none if there are fewer."""
    seconds = 0.0
    for number, last in enumerate(reversed(lasts), start=1):
        seconds += lasted_s[last]
        if number >= PARTS and seconds >= SECONDS:
            return lasts[-number:]
    return ()


def _parts(ratios: Sequence[float]) -> list[Sequence[float]]:
    """Split into PARTS runs of about equal length."""
    ends = [len(ratios) * part // PARTS for part in range(PARTS + 1)]
    return [ratios[begin:end] for begin, end in pairwise(ends)]


@check(Part.TIMINGS)
def slow_node(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check whether one node is slower than the others.

    1: in each fifth of the newest 10 seconds, and 50 iterations, the forward and backward passes of a node's ranks took
    `[watch] slower_node_percent` longer than those of the same pipeline stage on other nodes, and longer than these
    differ from each other. With 16 nodes or fewer in a stage the difference must be at least 5 %. With two or three it
    must be 25 %, because it is not known which node is normal.
    """
    for slow in slow_nodes(snapshot.timings, settings.watch.slower_node_percent)[:_NAMED]:
        yield warning(
            f"node {slow.node} of the running job is slow: {slow.words}",
            slow.node,
            evidence=(slow.words,),
            todo=f"opsctl nodes {slow.node}; opsctl exclude add {slow.node} --why slow, and opsctl request requeue",
        )


@check(Part.CLOCKS)
def clocks(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check that the nodes' clocks agree with the storage's.

    1: the clock of a node differs by more than `[watch] clock_seconds`.
    """
    most_s = settings.watch.clock_seconds
    wrong = [one for one in snapshot.clocks if abs(one.off_s) > most_s]
    todo = "opsctl exclude add {node} --why clock; report it to the cluster's administrators"
    if len(wrong) > _CLOCKS_NAMED:
        worst = max(wrong, key=lambda one: abs(one.off_s))
        many = f"the clocks of {len(wrong)} of {len(snapshot.clocks)} nodes are off"
        todo = todo.format(node="NODE")
        if len(wrong) == len(snapshot.clocks):
            todo = "date compares this host; if only the file server is off, report it to the cluster's administrators"
        evidence = (f"{one.node}: {one.off_s:+.0f} s" for one in wrong[:_CLOCKS_NAMED])
        yield warning(f"{many}, {worst.node}'s by {worst.off_s:+.0f} s", "many", evidence=evidence, todo=todo)
        return
    for one in wrong:
        at = one.at.astimezone().isoformat(timespec="seconds")
        yield warning(
            f"the clock of {one.node} is {abs(one.off_s):.0f} s {'ahead of' if one.off_s > 0 else 'behind'} "
            "the file server's",
            one.node,
            evidence=(f"{one.off_s:+.1f} s at {at}; at most {most_s:g} s",),
            todo=todo.format(node=one.node),
        )
