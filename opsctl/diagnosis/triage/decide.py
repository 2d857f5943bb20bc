"""Decide on one verdict from all facts about a failure. Pure.

The rank that failed first counts, not the one with the most messages. Lines about lost peers, about timeouts in which
others waited for a rank, and of launchers that end the rest count only if there is no other evidence. If a node and a
user's error are equally likely, the verdict is the user's error.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from opsctl.diagnosis.triage.candidates import (
    ENOUGH,
    Candidate,
    after_a_crash,
    after_a_hang,
    of_cancelled_step,
    of_exit,
    of_findings,
    of_peers,
    of_samples,
    of_signal,
    of_slurm,
    of_stacks,
    of_waiting,
    was_ended,
)
from opsctl.diagnosis.triage.findings import Facts, by_one_clock
from opsctl.diagnosis.triage.location import of_one_node, placed
from opsctl.diagnosis.triage.rules import Advice, Fault, Role, Rules
from opsctl.run.attempts.outcome import describe, elect
from opsctl.run.attempts.verdict import Cause, Quote, Verdict
from trainer.formats.attempt.attempt_records import Failure

#: A node is blamed only if no user's error has a score this close.
_MARGIN = 0.2
_MOST_QUOTES = 5


def decide(facts: Facts, rules: Rules) -> Verdict:
    """Return the verdict; `Cause.UNKNOWN` with the last lines if nothing explains the failure."""
    first = _first(facts)
    known = [*of_findings(facts, first, Role.ROOT), *of_slurm(facts)]
    candidates = [*after_a_crash(after_a_hang(known, facts), facts, first), *of_stacks(facts), *of_waiting(facts)]
    if not any(one.score >= ENOUGH for one in candidates):
        candidates += [*of_samples(facts, first), *of_signal(facts, first), *of_exit(facts, first)]
        candidates += of_cancelled_step(facts, first)
        if not candidates and not was_ended(facts, first) and not facts.ended_on:
            candidates = [*of_peers(facts), *of_findings(facts, first, Role.CASCADE)]
    if not candidates:
        return _not_found(facts, first, rules)
    winner = _winner(candidates)
    same = [one for one in candidates if one.cause is winner.cause]
    place = placed(candidates, winner, first, facts)
    alone = next((row.alone for row in rules.rows if row.name == winner.rule), None)
    blamed = of_one_node(winner, place, facts, alone, same)
    place = blamed if blamed is not winner and not winner.names_place else place
    winner = blamed
    return Verdict(
        cause=winner.cause,
        summary=_sentence(winner, place),
        node=place.node,
        rank=place.rank,
        at=place.at or winner.at,
        user_fault=winner.fault is Fault.USER,
        confidence=_confidence(winner, candidates, place, first),
        evidence=_quotes([winner, *sorted(same, key=lambda one: -one.score)]),
        cascade=tuple(dict.fromkeys(one.quote for one in facts.findings if one.rule.role is Role.CASCADE))[
            :_MOST_QUOTES
        ],
        todo=todo(rules.advice.get(winner.cause), winner.advice, place.node),
    )


def _first(facts: Facts) -> Failure | None:
    """Return the rank that failed first, compared by one clock. Its time stays that of its own node."""
    by_clock = [
        msgspec.structs.replace(one, failed_at=by_one_clock(one.failed_at, one.node, facts.advances_s))
        for one in facts.failures
    ]
    found, _ = elect(by_clock)
    return next((one for one in facts.failures if found is not None and one.rank == found.rank), None)


def teardown(facts: Facts) -> tuple[Quote, ...]:
    """Return some lines of launchers and of Slurm that only end the remaining processes."""
    return tuple(one.quote for one in facts.findings if one.rule.role is Role.TEARDOWN)[:_MOST_QUOTES]


def todo(advice: Advice | None, own: str, node: str) -> tuple[str, ...]:
    """Return the advice (`own` replaces its text), then its commands; without a node none that need one."""
    if advice is None:
        return (own,) if own else ()
    typed = [command for command in advice.type if node or "{node}" not in command]
    return (own or advice.say, *(command.replace("{node}", shlex.quote(node)) for command in typed))


def _winner(candidates: Sequence[Candidate]) -> Candidate:
    best = max(candidates, key=lambda one: (one.score, [-part for part in one.order]))
    if best.fault is not Fault.NODE:
        return best
    users = [one for one in candidates if one.fault is Fault.USER and one.score >= best.score - _MARGIN]
    return max(users, key=lambda one: one.score) if users and best.weight < 0.85 else best


def _confidence(winner: Candidate, candidates: Sequence[Candidate], placed: Candidate, first: Failure | None) -> float:
    sure = winner.weight
    if first is not None and placed.rank == first.rank:
        sure += 0.05
    rival = max((one.score for one in candidates if one.cause is not winner.cause), default=0.0)
    if rival > winner.score - 0.1:
        sure -= 0.15
    return round(min(0.99, max(0.05, sure)), 2)


def _sentence(winner: Candidate, placed: Candidate) -> str:
    where = [f"rank {placed.rank}" if placed.rank is not None else "", f"on {placed.node}" if placed.node else ""]
    place = " ".join(filter(None, where))
    return f"{winner.cause}{f', {place}' if place else ''}: {winner.sentence}"


def _quotes(candidates: Sequence[Candidate]) -> tuple[Quote, ...]:
    return tuple(dict.fromkeys(one.quote for one in candidates))[:_MOST_QUOTES]


def _not_found(facts: Facts, first: Failure | None, rules: Rules) -> Verdict:
    failed = list(dict.fromkeys(facts.failed_tasks))
    verdict = Verdict(
        cause=Cause.UNKNOWN,
        summary="cause not found",
        node=facts.ended_on or (failed[0] if len(failed) == 1 else ""),
        evidence=facts.last_lines,
        todo=todo(rules.advice.get(Cause.UNKNOWN), "", ""),
    )
    if first is None:
        return verdict
    return msgspec.structs.replace(
        verdict,
        summary=f"cause not found; {describe(first)}",
        node=first.node or verdict.node,
        rank=first.rank,
        at=first.failed_at,
    )
