"""Locate a failure: the node and the rank of a cause, from all candidates and facts. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from opsctl.diagnosis.triage.candidates import Candidate
from opsctl.diagnosis.triage.findings import Facts
from opsctl.diagnosis.triage.rules import Fault, Role
from opsctl.run.attempts.verdict import Cause
from trainer.formats.attempt.attempt_records import Failure

#: Causes of the whole job instead of a rank.
_OF_A_JOB = (Cause.TIME_LIMIT, Cause.PREEMPTED, Cause.CANCELLED, Cause.NODE_FAILURE)
#: Causes that all ranks of a node share.
_OF_A_NODE = (Cause.SHM, Cause.HOST_OOM)
#: Causes of a GPU: the kernel and a rank may report the same failure as different ones.
_OF_A_GPU = (Cause.GPU_ERROR, Cause.GPU_ECC, Cause.GPU_LOST)
#: Messages of a network library about its own end of a connection.
_OWN_END = re.compile("NCCL WARN|Transport retry count exceeded")
#: A connection that cannot be established has two ends.
_TO_ANOTHER = re.compile(r"NCCL WARN .{0,80}\b[Cc]onnect to \S+ failed")
#: A line is as good as the winner's from this share of the winner's weight on.
_NEAR = 0.7
#: So few ranks with the same message are not all ranks, if the job has this many times more.
_FEW, _TIMES_AS_MANY = 3, 4
#: The differences between the same message of several ranks.
_SHAPE = re.compile(r"0x[0-9a-f]+|\d+")


def placed(candidates: Sequence[Candidate], winner: Candidate, first: Failure | None, facts: Facts) -> Candidate:
    """Return the winner with its location: that of the rank that failed first, else of the earliest line."""
    same = [one for one in candidates if one.cause is winner.cause]
    pointed = [one for one in same if one.is_pointed_at and one.weight >= winner.weight * _NEAR]
    if len({one.rank for one in pointed}) > 1 and len(nodes := {_node_of_one(one, facts) for one in pointed}) == 1:
        return replace(winner, node=nodes.pop(), rank=None)
    if winner.is_pointed_at and winner.node:
        return winner
    if _TO_ANOTHER.search(winner.sentence) and any(
        one.node not in ("", winner.node) and _TO_ANOTHER.search(one.text) for one in facts.findings
    ):
        return replace(winner, node="", rank=None)
    if winner.cause in _OF_A_JOB:
        return winner if winner.node else max(same, key=lambda one: bool(one.node))
    if not winner.names_place and not (place := _one_end(same, winner)):
        failed = set(facts.failed_tasks) if winner.cause is Cause.USER_CODE and len(facts.nodes) > 1 else set()
        return replace(winner, node=failed.pop() if len(failed) == 1 else "", rank=None)
    if not winner.names_place and place:
        return replace(winner, node=place.node, rank=place.rank)
    if len({one.rank for one in pointed}) == 1:
        return replace(winner, node=_node_of_one(pointed[0], facts), rank=pointed[0].rank)
    if _all_report_it(same, facts):
        nodes = {one.node for one in same}
        shared = winner.cause in _OF_A_NODE or winner.fault is Fault.NODE or _other_nodes_work(nodes, facts)
        return replace(winner, node=nodes.pop() if len(nodes) == 1 and shared else "", rank=None)
    if first is not None and first.rank >= 0 and any(first.rank == one.rank for one in same):
        return replace(winner, node=first.node or winner.node, rank=first.rank, at=first.failed_at or winner.at)
    known = [one for one in same if one.weight >= winner.weight * _NEAR and (one.node or one.rank is not None)]
    found = min(known, key=lambda one: one.order, default=winner)
    if found.rank is None:
        found = replace(found, rank=_rank_there(candidates, found))
    if first is not None and found.rank is None and found.node in ("", first.node):
        found = replace(found, node=first.node or found.node, rank=first.rank, at=found.at or first.failed_at)
    return found if found.node else replace(found, node=_node_there(candidates, found) or _node_of(found.rank, facts))


def _rank_there(candidates: Sequence[Candidate], found: Candidate) -> int | None:
    """Return the only rank with that cause on the node or an unknown one: a kernel's message names no rank."""
    causes = _OF_A_GPU if found.cause in _OF_A_GPU else (found.cause,)
    ranks = {
        one.rank
        for one in candidates
        if one.cause in causes and one.rank is not None and one.node in ("", found.node) and one.weight >= 0.4
    }
    return ranks.pop() if len(ranks) == 1 and found.node else None


def _node_there(candidates: Sequence[Candidate], found: Candidate) -> str:
    """Return the only node whose kernel reports the same GPU failure: its message names no rank."""
    nodes = {one.node for one in candidates if one.cause in _OF_A_GPU and one.node and one.rank is None}
    return nodes.pop() if len(nodes) == 1 and found.cause in _OF_A_GPU else ""


def _one_end(same: Sequence[Candidate], winner: Candidate) -> Candidate | None:
    """Return the location that all lines of the winner's rule share, if one node reports its own network error."""
    alike = [one for one in same if one.rule == winner.rule and _OWN_END.search(one.sentence)]
    own = winner.rule == "infiniband-completion" and len({one.node for one in alike}) == 1
    if not own or not alike[0].node:
        return None
    return alike[0] if len({one.rank for one in alike}) == 1 else replace(alike[0], rank=None)


def _node_of_one(one: Candidate, facts: Facts) -> str:
    return one.node or _node_of(one.rank, facts)


def _node_of(rank: int | None, facts: Facts) -> str:
    known = next((place.node for place in facts.ranks if rank is not None and place.rank == rank), "")
    return known or _only_node(facts)


def _only_node(facts: Facts) -> str:
    """Return the job's only node, or the only one with a failed task; empty if there are several."""
    failed = set(facts.failed_tasks)
    return facts.nodes[0] if len(facts.nodes) == 1 else failed.pop() if len(failed) == 1 else ""


def _all_report_it(same: Sequence[Candidate], facts: Facts) -> bool:
    """Return True if so many ranks report the same that it is not the failure of a single rank."""
    reported = {(_shape(one), one.rank) for one in same if one.rank is not None}
    ranks = Counter(shape for shape, _ in reported)
    heard = {one.rank for one in facts.findings if one.rank is not None}
    most = max(ranks.values(), default=0)
    if most < 2:
        return _all_nodes_report_it(same, facts)
    if most * 2 <= len(heard):
        return False
    size = max(len(facts.ranks), max(heard) + 1)
    if most <= _FEW and most * _TIMES_AS_MANY <= size:
        return False
    return not _is_of_one_late_node(same, facts)


def _shape(one: Candidate) -> str:
    """Return the line without its numbers and its node's name."""
    return _SHAPE.sub("", one.quote.text.replace(one.node, "") if one.node else one.quote.text)


def _all_nodes_report_it(same: Sequence[Candidate], facts: Facts) -> bool:
    """Return True if lines without a rank report the same on each of several nodes."""
    reported = {(_shape(one), one.node) for one in same if one.node}
    nodes = Counter(shape for shape, _ in reported)
    heard = {one.node for one in facts.findings if one.node} | {*facts.nodes}
    return max(nodes.values(), default=0) >= max(2, len(heard))


def _is_of_one_late_node(same: Sequence[Candidate], facts: Facts) -> bool:
    """Return True if only ranks of one node report it. Not the first node: a log may show only that one."""
    heaviest = max(one.weight for one in same)
    nodes = {one.node for one in same if one.rank is not None and one.weight >= heaviest * _NEAR}
    first = next((place.node for place in facts.ranks if place.rank == 0), facts.nodes[0] if facts.nodes else "")
    known = {*facts.nodes, *(place.node for place in facts.ranks)}
    return len(nodes) == 1 and len(known) > 1 and not nodes & {"", first}


def of_one_node(
    winner: Candidate, place: Candidate, facts: Facts, alone: Cause | None, candidates: Sequence[Candidate]
) -> Candidate:
    """Return the winner as the node's fault if its rule has a cause for that and all other nodes work."""
    named = {one.node for one in candidates if one.rule == winner.rule and one.node}
    if alone is not None and not winner.names_place and len(named) == 1:
        return replace(winner, cause=alone, fault=Fault.NODE, node=named.pop())
    if alone is None or not place.node or not _other_nodes_work({place.node}, facts):
        return winner
    return replace(winner, cause=alone, fault=Fault.NODE)


def _other_nodes_work(nodes: set[str], facts: Facts) -> bool:
    """Return True if the job has more nodes and only these failed, by srun or by lines of other nodes."""
    alone = set(facts.failed_tasks) == nodes and len(facts.nodes) > 1
    followed = {one.node for one in facts.findings if one.rule.role is Role.CASCADE and one.node} - nodes
    return alone or bool(followed)
