"""The product's decisions, called with plain values: every rule is imported, none is written here."""

from __future__ import annotations

import functools
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from benchmarks.desk.shapes import HOUR_S
from benchmarks.simulate import figures
from opsctl.diagnosis.hangs import summary as told
from opsctl.diagnosis.nodes.exclusion_list import Exclusion
from opsctl.diagnosis.nodes.judging import End, ends_of, used_despite_exclusion
from opsctl.diagnosis.nodes.judging import judge as judge_nodes
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence, Policy, slow_evidence
from opsctl.diagnosis.probe.launch import Answer
from opsctl.diagnosis.probe.report import NodeReport, Standing
from opsctl.diagnosis.probe.verdict import Expected
from opsctl.diagnosis.probe.verdict import judge as judge_probe
from opsctl.jobs.runner.hang_watch import Silence, is_hung, next_look_s
from opsctl.jobs.runner.stacks import Taken
from opsctl.monitoring.checks.nodes import PARTS, SlowNode, slow_nodes
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import Cause, Verdict
from opsctl.slurm.nodes import Node
from trainer.formats.attempt.error_file import RankStack
from trainer.formats.attempt.node_samples import TIMED_ITERATIONS, RankTiming

#: How much measurements of equal nodes differ.
_NOISE = 0.01
_TFLOPS = 250.0
#: Nodes that hold one stage of the pipeline.
STAGE = 64
#: Nodes as they should be that tell a probe what is usual.
_FEW = 24
_WAITS = 'Thread 0x1 (most recent call first):\n  File "torch/distributed/distributed_c10d.py", line 9 in all_reduce\n'
_ELSEWHERE = 'Thread 0x1 (most recent call first):\n  File "torch/utils/data/dataloader.py", line 9 in _next_data\n'
_PARTS = frozenset({"machine", "run_folder", "shm", "disk", "memory", "products", "gpus", "gpu_products", "network"})


class Exclusions:
    """The evidence against nodes, and the resulting exclusion list."""

    def __init__(self, names: Sequence[str], needed: int) -> None:
        self.policy = Policy(needed=needed)
        self._in_service = {name: Node(name, "idle", "") for name in names}
        self._evidence: dict[str, list[NodeEvidence]] = {}
        self._ends: list[End] = []
        self._known: dict[str, Exclusion] = {}
        self._stood: set[str] = set()  # of those known, when they were last looked at
        self.accused: set[str] = set()  # nodes of which anything was ever seen: of no others an end says anything

    def ended(self, attempt: Attempt) -> None:
        """An attempt is over, on nodes of which only those that are accused need to be named."""
        end = ends_of([attempt])
        verdict, at = attempt.verdict, attempt.closed_at
        if verdict is not None and verdict.node and at is not None and verdict.confidence >= 0.6:
            self.seen(
                NodeEvidence(
                    node=verdict.node,
                    kind=verdict.cause,
                    at=at,
                    words=verdict.summary,
                    confidence=verdict.confidence,
                    attempt=attempt.id,
                    by="triage",
                )
            )
        self.accused.update(*(one.blamed for one in end))
        self._ends += [one for one in end if one.blamed or one.nodes]
        if at is not None:
            self._judge({name for one in end for name in one.blamed} | ({verdict.node} if verdict else set()), at)

    def seen(self, evidence: NodeEvidence) -> None:
        """A line is put on record."""
        self.accused.add(evidence.node)
        self._evidence.setdefault(evidence.node, []).append(evidence)

    def slow(self, found: SlowNode, attempt: str, at: datetime) -> None:
        """Record the evidence of a regular check against a slow node."""
        line = slow_evidence(found.node, found.ratio, found.words, attempt, at, self._evidence.get(found.node, ()))
        if line is not None:
            self.seen(line)
            self._judge({found.node}, at)

    def probed(self, reports: Iterable[NodeReport], attempt: str, at: datetime) -> None:
        """Record the evidence of a probe against bad or slow nodes."""
        bad = {one.node for one in reports if one.standing in (Standing.BAD, Standing.SLOW)}
        for name in sorted(bad):
            words, sure = "broken", 0.9
            self.seen(
                NodeEvidence(node=name, kind="probe", at=at, words=words, confidence=sure, attempt=attempt, by="probe")
            )
        self._judge(bad, at)

    def standing(self, at: datetime) -> set[str]:
        """Nodes that are on the list now."""
        return {name for name in self._stood if self._known[name].stands(at)}

    def stay_off(self, down: Collection[str], at: datetime) -> set[str]:
        """Nodes that a job is not to be given."""
        ended = {name for name in self._stood if not self._known[name].stands(at)}
        self._stood -= ended
        self._judge(ended, at)
        standing = [self._known[name] for name in sorted(self._stood)]
        if not standing:
            return set()
        nodes = (self._in_service | {name: Node(name, "down", "") for name in down}).values()
        return {one.node for one in standing} - used_despite_exclusion(standing, nodes, self.policy).keys()

    def _judge(self, names: set[str], at: datetime) -> None:
        """Judge those of which something is new, or whose time is over: of others time only takes away what is said."""
        names = {name for name in names if name}
        if not names:
            return
        evidence = [line for name in sorted(names) for line in self._evidence.get(name, ())]
        before = [self._known[name] for name in sorted(names) if name in self._known]
        found = judge_nodes(evidence, self._ends, at, sorted(names), self.policy, before)
        for name in names:
            self._known.pop(name, None)
        self._known.update({one.node: one for one in found})
        self._stood = (self._stood - names) | {one.node for one in found if one.stands(at)}


@functools.lru_cache(maxsize=4096)
def silence_of(limit_s: float, node: str) -> tuple[float, Verdict]:
    """(after how long a silence the job ends a step that stands still, what it says of it).

    node: whose rank the others wait for; empty where every rank waits alike.
    """
    stacks = [RankStack(rank, f"other{rank}", 1, "S", _WAITS) for rank in range(3)]
    stacks += [RankStack(3, node, 1, "S", _ELSEWHERE)] if node else []
    taken, limit = Taken(tuple(stacks), (), len(stacks)), Silence(limit_s, may_end=True)
    silent_s, before = limit_s, None
    while not is_hung(silent_s, limit, before, taken):
        silent_s, before = next_look_s(silent_s, limit), taken
    verdict = told.verdict_of(taken.groups, taken.ranks)
    return silent_s, verdict


def found_slow(
    nodes: Sequence[str],
    slow: Mapping[str, float],
    due: Collection[str],
    each_s: float,
    dice: random.Random,
    slower_node_percent: float,
) -> list[SlowNode]:
    """Return what the check for slow nodes finds in the newest timings of a training on `nodes`.

    Each pipeline stage has STAGE of them. Only stages with a slow node that is `due` are looked at: in those without a
    slow one there is none to be found, and the check's tests say that it finds none.
    """
    asked = frozenset(due)
    stages = [nodes[begin : begin + STAGE] for begin in range(0, len(nodes), STAGE)]
    return slow_nodes(
        (
            RankTiming(
                rank=rank,
                stage=stage,
                iteration=(stretch + 1) * TIMED_ITERATIONS,
                iterations=TIMED_ITERATIONS,
                own_s=TIMED_ITERATIONS * each_s * slow.get(node, 1.0) * dice.gauss(1.0, _NOISE),
                step_s=TIMED_ITERATIONS * each_s,
                node=node,
            )
            for stage, there in enumerate(stages)
            if not asked.isdisjoint(there)
            for stretch in range(PARTS)
            for rank, node in enumerate(there)
        ),
        slower_node_percent,
    )


def probed(
    nodes: Sequence[str], bad: Collection[str], slow: Mapping[str, float], dice: random.Random
) -> tuple[NodeReport, ...]:
    """Return what a quick probe says of those that were looked at.

    Of the nodes that are as they should be only some are asked, enough to tell what is usual: the others say the same.
    """
    odd = [node for node in nodes if node in bad or node in slow]
    usual = [node for node in nodes if node not in bad and node not in slow][: max(_FEW, 3 * len(odd))]
    answers = [_answer(node, node in bad, slow.get(node, 1.0), dice) for node in (*odd, *usual)]
    return judge_probe(answers, Expected()).nodes


def _answer(node: str, is_bad: bool, ratio: float, dice: random.Random) -> Answer:
    shows = is_bad and dice.random() < figures.PROBE_SEES.value
    numbers: dict[tuple[str, str], dict[int | None, float]] = {
        ("gpu_products", "bf16_tflops"): {0: _TFLOPS / ratio * dice.gauss(1.0, _NOISE)},
        ("gpus", "ecc_uncorrected"): {0: float(shows)},
    }
    return Answer(node, numbers, {("gpus", "name"): "a GPU"}, set(_PARTS))


def said_by_triage(cause: Cause, node: str, confidence: float) -> Verdict:
    """Return what triage says of a bad end that it has found the cause of."""
    return Verdict(cause=cause, node=node, confidence=confidence, summary=f"{cause} on {node}")


#: A look of the watch.
LOOK_S = HOUR_S
