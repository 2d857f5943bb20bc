"""Decide which nodes to avoid, by the endings of attempts and by evidence. Pure.

A node is excluded by one sure hardware finding, by bad endings in a row that its hardware caused, or
by a score: the sum of the evidence, weighted by kind and confidence and halved once per half-life of its kind. Evidence
that a program can cause too is never enough alone. Each run avoids the worst of all excluded nodes that its limit
allows; the list has all of them, because runs that share it have different limits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from opsctl.diagnosis.nodes.exclusion_list import BY_EVIDENCE, Exclusion, evidence_line
from opsctl.diagnosis.nodes.node_evidence import AMBIGUOUS, WEIGHTS, NodeEvidence, Policy
from opsctl.run.attempts.ending import AS_PLANNED, Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.outcome import describe
from opsctl.slurm.nodes import Node

_BAD = frozenset({Ending.FAILED, Ending.SIGNAL, Ending.HANG, Ending.NODE_FAILURE, Ending.OUT_OF_MEMORY})


@dataclass(frozen=True)
class End:
    """The end of one attempt, as far as it concerns nodes."""

    at: datetime
    nodes: frozenset[str]  # that took part
    blamed: frozenset[str] = frozenset()  # nodes whose hardware ended it
    is_good: bool = False
    words: str = ""  # attempt, job, event


def ends_of(attempts: Iterable[Attempt]) -> list[End]:
    """Return the ends of closed attempts, oldest first. A user's error blames no node."""
    found = []
    for attempt in attempts:
        at = attempt.closed_at
        if at is None or attempt.reason is None:
            continue
        blamed = _blamed(attempt) if attempt.reason in _BAD else frozenset()
        words = f"attempt {attempt.number}, job {attempt.display_id}: {_how(attempt)}" if blamed else ""
        found.append(End(at, frozenset(attempt.nodes), blamed, attempt.reason in AS_PLANNED, words))
    return found


def in_a_row(ends: Sequence[End], node: str, since: datetime | None) -> list[End]:
    """Return the newest bad endings on `node` after `since` without a good ending on it in between, newest first."""
    row = []
    for end in reversed(ends):
        if since is not None and end.at <= since:
            break
        if node in end.blamed:
            row.append(end)
        elif end.is_good and node in end.nodes:
            break
    return row


def _blamed(attempt: Attempt) -> frozenset[str]:
    """Return the nodes that Slurm lost and the one that triage names. A killed rank alone blames no node."""
    lost, verdict, first = frozenset(attempt.lost_nodes), attempt.verdict, attempt.first_failure
    if verdict is None or not verdict.is_known:
        return lost
    weight = WEIGHTS.get(verdict.cause)
    if verdict.user_fault or weight is None:
        return frozenset()
    name = verdict.node or (first.node if first is not None else "")
    return lost | {name} if name and weight.is_hardware else lost


def _how(attempt: Attempt) -> str:
    if attempt.verdict is not None and attempt.verdict.summary:
        return attempt.verdict.summary
    if attempt.first_failure is not None:
        return describe(attempt.first_failure)
    return f"{attempt.reason}{f', {attempt.note}' if attempt.note else ''}"


#: Lines of evidence recorded with a decision.
_NAMED = 5


@dataclass(frozen=True)
class Case:
    """The current evidence against one node."""

    node: str
    score: float
    row: tuple[End, ...]  # bad ends in a row, newest first
    sure: NodeEvidence | None  # the evidence about its hardware that is enough alone
    lines: tuple[str, ...]  # strongest first
    newest: datetime | None  # time of the newest evidence
    is_of_node: bool  # some line is about the node itself
    policy: Policy

    @property
    def is_enough(self) -> bool:
        """Return True if the node is to be excluded."""
        return self.sure is not None or self.has_row or (self.is_of_node and self.score >= self.policy.least_score)

    @property
    def has_row(self) -> bool:
        """Return True if enough attempts in a row ended badly because of it."""
        return len(self.row) >= self.policy.bad_ends

    @property
    def strength(self) -> float:
        """Return the key that orders nodes if only some can be excluded."""
        return self.score + (1.0 if self.has_row else 0.0) + (1.0 if self.sure is not None else 0.0)

    @property
    def why(self) -> str:
        """Return the reason in a clause."""
        if self.sure is not None:
            return f"{self.sure.kind}, with confidence {self.sure.confidence:.2f}"
        if self.has_row:
            return f"{len(self.row)} attempts in a row failed because of it"
        return f"evidence score {self.score:.2f} (limit {self.policy.least_score:g})"


def weight_of(one: NodeEvidence, now: datetime) -> float:
    """Return the current weight of a line; 0 for kinds that are no node's fault. A clock ahead adds no weight."""
    known = WEIGHTS.get(one.kind)
    if known is None or not math.isfinite(one.confidence):
        return 0.0
    age_s = max(0.0, (now - one.at).total_seconds())
    left = math.exp2(-age_s / known.half_life.total_seconds())
    return known.weight * min(1.0, max(0.0, one.confidence)) * left


def score_of(evidence: Iterable[NodeEvidence], now: datetime) -> float:
    """Return the current weight of all lines. Of lines of one kind about one attempt only the strongest counts."""
    strongest: dict[object, float] = {}
    for one in evidence:
        key = (one.kind, one.attempt) if one.attempt else (one.kind, one.at, one.words)
        strongest[key] = max(strongest.get(key, 0.0), weight_of(one, now))
    return math.fsum(strongest.values())


def case_against(
    node: str,
    evidence: Sequence[NodeEvidence],
    ends: Sequence[End],
    now: datetime,
    policy: Policy,
    since: datetime | None,
) -> Case:
    """Return the case from the lines and the run's ends that are younger than `since`."""
    counted = [one for one in evidence if (since is None or one.at > since) and weight_of(one, now) > 0.0]
    counted.sort(key=lambda one: -weight_of(one, now))
    hardware = [one for one in counted if WEIGHTS[one.kind].is_hardware and one.confidence >= policy.sure]
    row = tuple(end for end in in_a_row(ends, node, since) if now - end.at <= policy.bad_ends_within)
    # A verdict alone is enough for one half-life; later it is one line among others.
    sure = next((one for one in hardware if now - one.at <= WEIGHTS[one.kind].half_life), None)
    shown = [*(evidence_line(one) for one in counted), *(end.words for end in row if len(row) >= policy.bad_ends)]
    newest = max((*(one.at for one in counted), *(end.at for end in row)), default=None)
    lines = tuple(dict.fromkeys(shown))[:_NAMED]
    is_of_node = any(one.kind not in AMBIGUOUS for one in counted)
    return Case(node, score_of(counted, now), row, sure, lines, newest, is_of_node, policy)


def judge(
    evidence: Iterable[NodeEvidence],
    ends: Sequence[End],
    now: datetime,
    partition: Sequence[str],
    policy: Policy,
    before: Sequence[Exclusion] = (),
) -> tuple[Exclusion, ...]:
    """Update the list: `before`, with new exclusions by `evidence` and `ends` (oldest first), without expired ones.

    partition: nodes that the run may be given; records of other nodes stay unchanged. Exclusions by persons last
    until they end. Expired records are kept while they make the next exclusion longer.
    """
    by_node: dict[str, list[NodeEvidence]] = defaultdict(list)
    for one in evidence:
        by_node[one.node].append(one)
    known, here = {one.node: one for one in before}, set(partition)
    untouched = [one for one in before if one.node not in here]
    found: list[Exclusion] = []
    accused = {*by_node, *(node for end in ends for node in end.blamed), *known}
    for node in sorted(accused & here):
        record = known.get(node)
        stands = record is not None and record.stands(now)
        case = case_against(node, by_node[node], ends, now, policy, None if stands or record is None else record.served)
        if stands and record is not None:
            found.append(record if record.is_a_persons else _still(record, case))
        elif case.is_enough:
            found.append(_new(record, case, now))
        elif record is not None and now - (record.removed_at or record.until) <= policy.remembered:
            found.append(record)
    return tuple(sorted((*untouched, *found), key=lambda one: one.node))


def used_despite_exclusion(standing: Iterable[Exclusion], nodes: Iterable[Node], policy: Policy) -> dict[str, str]:
    """Return excluded node -> reason, for nodes that the run uses because the limit is reached.

    standing: current exclusions. nodes: nodes that the run may be given. A node out of service counts neither
    as excluded nor as available. Exclusions by persons always apply.
    """
    there = list(nodes)
    serving = {node.name for node in there if not node.is_out_of_service}
    here = [one for one in standing if one.node in serving]
    by_evidence = [one for one in here if not one.is_a_persons]
    most, words = room(len(there), len(serving), len(here) - len(by_evidence), policy)
    ordered = sorted(by_evidence, key=lambda one: (-one.strength, one.since, one.node))
    return {one.node: words for one in ordered[most:]}


def room(partition: int, serving: int, by_persons: int, policy: Policy) -> tuple[int, str]:
    """Return the number of nodes that evidence may exclude, and the reason. At least one, if the run has enough."""
    share = max(1, math.floor(partition * policy.most_excluded_percent / 100.0) - by_persons)
    left = max(0, serving - by_persons - policy.needed)
    if left < share:
        return left, f"the run needs {policy.needed} of the partition's {serving} nodes in service"
    return share, (
        f"evidence may exclude at most {policy.most_excluded_percent:g} % of the partition's {partition} nodes, and at "
        "least one: [nodes] most_excluded_percent"
    )


def _still(record: Exclusion, case: Case) -> Exclusion:
    """Continue an exclusion: add new evidence and keep its end."""
    lines = tuple(dict.fromkeys((*record.evidence, *case.lines)))[:_NAMED]
    strength = max(record.strength, round(case.strength, 3))  # fading evidence is no change
    return msgspec.structs.replace(record, evidence=lines, strength=strength)


def _new(record: Exclusion | None, case: Case, now: datetime) -> Exclusion:
    times = 1 + (record.times if record is not None else 0)
    return Exclusion(
        node=case.node,
        since=now,
        until=now + case.policy.length(times),
        by=BY_EVIDENCE,
        why=case.why,
        evidence=case.lines,
        score=round(case.score, 3),
        strength=round(case.strength, 3),
        times=times,
        seen_until=case.newest if case.newest is not None and case.newest > now else None,
    )
