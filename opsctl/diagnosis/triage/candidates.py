"""Candidates for the cause: one for each line, Slurm state, stack, sample and signal. Pure."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass, replace
from datetime import datetime

from opsctl.diagnosis.triage.collective_timeouts import waited
from opsctl.diagnosis.triage.findings import ENDING_RULES, SURE, Facts, Finding, SlurmEnd, by_one_clock, is_root
from opsctl.diagnosis.triage.rules import Fault, Role
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.outcome import describe, signal_of
from opsctl.run.attempts.verdict import Cause, Quote
from opsctl.slurm.states import End, end_of
from trainer.formats.attempt.attempt_records import HARD_END_STATUS, Failure
from trainer.formats.attempt.error_file import is_lost_peer, says_nothing, signal_name

#: Factor for a line after which the training continued: it may or may not be related.
_SURVIVED = 0.3
#: Factor for a warning: the program continued after it, at least for a while.
_WARNED = 0.5
#: Added for the earliest line, and for a message of the rank that failed first.
_FIRST_BONUS, _OWN_WORDS_BONUS = 0.08, 0.15
#: The score from which on weaker sources are not used.
ENOUGH = 0.4
#: A node that is out of service now: since when, and for which reason, is not known.
_BY_NOW = 0.35
#: Factor for a line that only follows from another failure.
_FOLLOWED = 0.7
#: Memory counts as full from this share on; a sample counts if it was taken this shortly before the end.
_FULL, _SAMPLE_COUNTS_S = 0.95, 120.0
#: The meaning of a signal that no line explains: cause, fault, weight.
_SIGNALS = {
    "SIGSEGV": (Cause.USER_CODE, Fault.USER, 0.45),
    "SIGFPE": (Cause.USER_CODE, Fault.USER, 0.45),
    "SIGILL": (Cause.USER_CODE, Fault.USER, 0.4),
    "SIGABRT": (Cause.USER_CODE, Fault.USER, 0.4),
}
#: Python's exit code if it could not flush its output.
_NOT_FLUSHED = 120
#: Exit codes that only the program itself can choose: not 1 (an uncaught error), a shell's, Python's or the trainer's.
_OWN_EXIT_CODES = frozenset(range(2, 125)) - {_NOT_FLUSHED, HARD_END_STATUS}
_LEFT = "The program ended itself with this exit code. Find the call of exit in the program or its libraries."
_SLURM = {
    End.OUT_OF_MEMORY: (Cause.HOST_OOM, Fault.USER, 0.9),
    End.TIME_LIMIT: (Cause.TIME_LIMIT, Fault.NOBODY, 0.9),
    End.PREEMPTED: (Cause.PREEMPTED, Fault.NOBODY, 0.95),
    End.NODE_FAILURE: (Cause.NODE_FAILURE, Fault.NODE, 0.9),
    End.CANCELLED: (Cause.CANCELLED, Fault.NOBODY, 0.75),
}
#: The meaning of an attempt's ending.
_ENDINGS = {
    Ending.SKIPPED_ITERATIONS: (Cause.DIVERGED, Fault.USER, 0.95),
    Ending.NODE_FAILURE: (Cause.NODE_FAILURE, Fault.NODE, 0.9),
    Ending.TIME_LIMIT: (Cause.TIME_LIMIT, Fault.NOBODY, 0.85),
    Ending.PREEMPTED: (Cause.PREEMPTED, Fault.NOBODY, 0.9),
    Ending.CANCELLED: (Cause.CANCELLED, Fault.NOBODY, 0.7),
    Ending.OUT_OF_MEMORY: (Cause.HOST_OOM, Fault.USER, 0.85),
}
#: Either end of a connection can report its loss, and a rank that waits is not the rank that hangs.
_OF_ANOTHER = (Cause.NETWORK, Cause.HANG)
#: Causes that other ranks report after a crash, the signals of a crash, and the crash's weight then.
_OF_PEERS, _CRASHES, _CRASHED = (Cause.NETWORK, Cause.NCCL), (signal.SIGSEGV, signal.SIGFPE, signal.SIGILL), 0.7
_LATEST = math.inf
#: Ends that are independent of the training's state.
_COME_ANYWAY = (Cause.TIME_LIMIT, Cause.CANCELLED, Cause.PREEMPTED)
#: The weight of one node that several others cannot reach.
_LOST = 0.66
#: The weight of ranks that all wait in the same place.
_WAITED_ALIKE = 0.75


@dataclass(frozen=True)
class Candidate:
    """A possible cause, with its evidence."""

    cause: Cause
    fault: Fault
    score: float  # the weight plus bonuses
    weight: float
    sentence: str
    quote: Quote
    node: str = ""
    rank: int | None = None
    at: datetime | None = None
    advice: str = ""
    order: tuple[float, float] = (_LATEST, _LATEST)
    rule: str = ""
    is_pointed_at: bool = False  # the line names the rank, whichever rank wrote it
    names_place: bool = True  # the failure happened where the line was written


def of_findings(facts: Facts, first: Failure | None, role: Role) -> list[Candidate]:
    """Return the candidates of lines whose rules have that role."""
    found = [one for one in facts.findings if one.rule.role is role]
    earliest = min((_order(one, facts) for one in found if not one.is_before_progress), default=None)
    return [_of_finding(one, facts, first, _order(one, facts) == earliest) for one in found]


def _of_finding(one: Finding, facts: Facts, first: Failure | None, is_first: bool) -> Candidate:
    weight = one.rule.weight * (_SURVIVED if one.is_before_progress else 1.0)
    weight *= _FOLLOWED if one.rule.role is Role.CASCADE else 1.0
    weight *= _WARNED if one.is_warning and one.rule.role is Role.ROOT and one.rule.weight < SURE else 1.0
    score = weight + (_FIRST_BONUS if is_first else 0.0)
    is_own = first is not None and not is_lost_peer(first.message) and first.rank in (one.rank, one.is_words_of)
    if is_own and one.rule.role is Role.ROOT and not one.is_before_progress:
        score += _OWN_WORDS_BONUS
    return Candidate(
        cause=one.rule.cause,
        fault=one.rule.fault,
        score=score,
        weight=weight,
        sentence=one.text,
        quote=one.quote,
        node=one.node,
        rank=one.rank,
        at=one.at,
        advice=one.rule.say,
        rule=one.rule.name,
        is_pointed_at=one.is_pointed_at,
        names_place=one.rule.placed and not (one.rule.role is Role.CASCADE and one.rule.cause in _OF_ANOTHER),
        order=_order(one, facts),
    )


def _order(one: Finding, facts: Facts) -> tuple[float, float]:
    """Order by position in the log. A message that a launcher kept has a time only, and comes last without one."""
    at = by_one_clock(one.at, one.node, facts.advances_s)
    return (float(one.order) if one.order >= 0 else _LATEST, at.timestamp() if at else _LATEST)


def of_slurm(facts: Facts) -> list[Candidate]:
    """Return the candidates of Slurm's job state or the attempt's ending, and of nodes out of service."""
    slurm, found = facts.slurm, []
    end = end_of(slurm.state)
    if end in _SLURM:
        cause, fault, weight = _SLURM[end]
        if cause is Cause.CANCELLED and _failed_before_it_was_cancelled(facts):
            weight = ENOUGH
        failed = _failed_node(slurm)
        only = facts.nodes[0] if len(facts.nodes) == 1 and cause is Cause.HOST_OOM else ""
        quote = Quote(source="slurm", text=f"{slurm.state}{f' ({failed})' if failed else ''}")
        found.append(Candidate(cause, fault, weight, weight, f"Slurm reports {quote.text}", quote, node=failed or only))
    elif facts.reason in _ENDINGS:
        cause, fault, weight = _ENDINGS[Ending(facts.reason)]
        failed = _failed_node(slurm) if cause is Cause.NODE_FAILURE else ""
        quote = Quote(source="attempt", text=f"ended: {facts.reason}")
        found.append(Candidate(cause, fault, weight, weight, f"The attempt ended: {facts.reason}", quote, node=failed))
    elif slurm.state.startswith("REQUEUE"):
        quote = Quote(source="slurm", text=slurm.state)
        found.append(Candidate(Cause.CANCELLED, Fault.NOBODY, ENOUGH, ENOUGH, f"Slurm reports {slurm.state}", quote))
    for node, reason in slurm.bad_nodes:
        quote = Quote(source="slurm", text=f"{node}: {reason or 'out of service'}")
        text = f"Slurm has taken {node} out of service"
        found.append(Candidate(Cause.NODE_FAILURE, Fault.NODE, _BY_NOW, _BY_NOW, text, quote, node=node))
    return found


def _failed_before_it_was_cancelled(facts: Facts) -> bool:
    """Return True if something failed before the cancellation: people also cancel a job that hangs."""
    ended = min((one.order for one in facts.findings if one.rule.name in ENDING_RULES), default=None)
    return any(
        is_root(one) and not one.is_before_progress and one.rule.placed and (ended is None or 0 <= one.order < ended)
        for one in facts.findings
    )


def _failed_node(slurm: SlurmEnd) -> str:
    """Return the node that failed according to Slurm, or the job's only node that is out of service."""
    if slurm.failed_nodes:
        return slurm.failed_nodes[0] if len(slurm.failed_nodes) == 1 else ""
    return slurm.bad_nodes[0][0] if len(slurm.bad_nodes) == 1 else ""


def of_stacks(facts: Facts) -> list[Candidate]:
    """Return the candidate for a hung step: the rank in another place, or all ranks in the same place."""
    if not facts.stacks:
        return []
    group = next((one for one in facts.stacks if one.is_odd), None)
    if group is None:
        most = max(facts.stacks, key=lambda one: one.count)
        text = f"the log stopped; ranks {most.ranks} waited in {most.collective or 'the same place'}"
        quote = Quote(source="stacks", text=text)
        return [Candidate(Cause.HANG, Fault.NOBODY, _WAITED_ALIKE, _WAITED_ALIKE, text, quote)]
    where = group.frames[0] if group.frames else "did not answer"
    is_known = not where.startswith("did not answer")
    text = f"rank {group.ranks} {'was in ' if is_known else ''}{where} while the others waited for it"
    rank = int(group.ranks) if group.ranks.isdecimal() else None
    node = group.nodes[0] if len(group.nodes) == 1 else ""
    quote = Quote(source="stacks", text=text)
    return [Candidate(Cause.HANG, Fault.NOBODY, 0.8, 0.8, text, quote, node=node, rank=rank)]


def after_a_hang(candidates: list[Candidate], facts: Facts) -> list[Candidate]:
    """Lower the score of a time limit, cancellation or preemption if the training had already stopped."""
    if not facts.stacks:
        return candidates
    return [
        replace(one, score=one.score * _FOLLOWED, weight=one.weight * _FOLLOWED) if one.cause in _COME_ANYWAY else one
        for one in candidates
    ]


def after_a_crash(candidates: list[Candidate], facts: Facts, first: Failure | None) -> list[Candidate]:
    """Add the crash of the rank that failed first, and lower the score of NCCL errors on other ranks."""
    if first is None or signal_of(first) not in _CRASHES:
        return candidates
    less = [
        replace(one, score=one.score * _FOLLOWED, weight=one.weight * _FOLLOWED)
        if one.cause in _OF_PEERS and one.rank != first.rank
        else one
        for one in candidates
    ]
    crash = [replace(one, score=_CRASHED, weight=_CRASHED) for one in of_signal(facts, first)]
    return [*less, *crash] if any(one.cause in _OF_PEERS for one in candidates) else candidates


def of_waiting(facts: Facts) -> list[Candidate]:
    """Return the rank that did not join a collective in which the others waited until the timeout."""
    late = [one for one in facts.findings if not one.is_before_progress]
    found = waited(late, len(facts.ranks))
    first_line = next((one for one in late if one.rank in found.ranks), None)
    if first_line is None:
        return []
    if found.odd:
        text = f"ranks {', '.join(map(str, found.odd))} called another collective than {found.collective} of the others"
        rank = found.odd[0] if len(found.odd) == 1 else None
        return [Candidate(Cause.USER_CODE, Fault.USER, 0.7, 0.7, text, first_line.quote, rank=rank, at=first_line.at)]
    if found.missing:
        text = f"{len(found.ranks)} ranks waited in {found.collective} for rank {', '.join(map(str, found.missing))}"
        rank = found.missing[0] if len(found.missing) == 1 else None
        node = next((place.node for place in facts.ranks if place.rank == rank), "")
        work = next((line for doer, line in facts.other_work if rank is not None and doer == rank), None)
        if work is not None:
            text = f"{text}, which did other work: {work}"
        what = (Cause.HANG, Fault.NOBODY, 0.55, 0.55) if work is None else (Cause.USER_CODE, Fault.USER, 0.7, 0.7)
        return [Candidate(*what, text, first_line.quote, node=node, rank=rank, at=first_line.at)]
    return []


def of_peers(facts: Facts) -> list[Candidate]:
    """Return the one silent node whose connections several others lost, or whose own ranks lost each other's."""
    late = [one for one in facts.findings if one.peer and not one.is_before_progress]
    is_within = len(late) > 1 and all(one.node == one.peer for one in late)
    late = [one for one in late if is_within or one.node != one.peer]
    peers = {one.peer for one in late}
    reporters = {
        (one.rank if one.local_rank is None else one.local_rank) if is_within else one.node or one.rank for one in late
    }
    has_words = any(
        one.node in peers and one.peer != one.node and one.rule.role is not Role.TEARDOWN for one in facts.findings
    )
    if len(peers) != 1 or len(reporters - {None}) < 2 or (has_words and not is_within):
        return []
    first_line, node = late[0], late[0].peer
    text = f"{len(reporters)} nodes or ranks lost their connections to {node}: {first_line.text}"
    lost = Candidate(Cause.NETWORK, Fault.NOBODY, _LOST, _LOST, text, first_line.quote, node=node, at=first_line.at)
    return [replace(lost, is_pointed_at=True)]


def _has_reported(first: Failure, facts: Facts) -> bool:
    """Return True if the rank reported an error before its end, as NCCL's watchdog does."""
    late = (one for one in facts.findings if not one.is_before_progress)
    return any(one.rank == first.rank and one.rule.role is Role.CASCADE for one in late)


def was_ended(facts: Facts, first: Failure | None) -> bool:
    """Return True if the rank that failed first was killed or asked to end: lost peers then follow from that."""
    if first is None:
        return False
    number = signal_of(first)
    return number in (signal.SIGKILL, signal.SIGBUS) or (number is not None and first.rank in facts.asked_to_end)


def of_samples(facts: Facts, first: Failure | None) -> list[Candidate]:
    """Return the memory or /dev/shm shortage of the node right before a signal that such a shortage causes."""
    number = signal_of(first) if first is not None else None
    sample = next((one for one in facts.samples if first is not None and one.node == first.node), None)
    if first is None or sample is None or _apart_s(sample.at, first.failed_at) > _SAMPLE_COUNTS_S:
        return []
    if number == signal.SIGKILL and sample.memory_share >= _FULL:
        cause, what, share = Cause.HOST_OOM, "host memory", sample.memory_share
    elif number == signal.SIGBUS and sample.shm_share >= _FULL:
        cause, what, share = Cause.SHM, "/dev/shm", sample.shm_share
    else:
        return []
    text = f"{describe(first)}, when {what} was {share:.0%} full"
    quote = Quote(source="samples", text=f"{sample.node}: {what} {share:.0%} full", at=sample.at)
    return [Candidate(cause, Fault.USER, 0.75, 0.75, text, quote, first.node, first.rank, first.failed_at)]


def _apart_s(one: datetime, other: datetime | None) -> float:
    return math.inf if other is None else abs((one - other).total_seconds())


def of_signal(facts: Facts, first: Failure | None) -> list[Candidate]:
    """Return the meaning of a signal that no message explains; nothing for signals with many meanings."""
    number = signal_of(first) if first is not None else facts.slurm.signal
    if number is None or (first is not None and not says_nothing(first.message)):
        return []
    known = _SIGNALS.get(signal_name(number))
    if known is None or (number == signal.SIGABRT and (first is None or _has_reported(first, facts))):
        return []
    cause, fault, weight = known
    text = describe(first) if first is not None else f"ended by {signal_name(number)}"
    quote = Quote(source="launcher", text=text, at=first.failed_at if first else None)
    found = Candidate(cause, fault, weight, weight, text, quote)
    return [replace(found, node=first.node, rank=first.rank, at=first.failed_at) if first is not None else found]


def of_exit(facts: Facts, first: Failure | None) -> list[Candidate]:
    """Return the candidate of a rank that left without a message but with an exit code of its own."""
    if first is None or first.exit_code is None or not says_nothing(first.message) or _has_reported(first, facts):
        return []
    is_left_by_our_own = first.exit_code == 1 and bool(first.message)
    if first.exit_code not in _OWN_EXIT_CODES and not is_left_by_our_own:
        return []
    text = describe(first)
    quote = Quote(source="launcher", text=text, at=first.failed_at)
    found = Candidate(Cause.USER_CODE, Fault.USER, 0.45, 0.45, text, quote, advice=_LEFT)
    return [replace(found, node=first.node, rank=first.rank, at=first.failed_at)]


def of_cancelled_step(facts: Facts, first: Failure | None) -> list[Candidate]:
    """Return a step's cancellation that Slurm does not report: SIGTERM ended its ranks."""
    first_line = facts.cancelled
    if first_line is None or first is None or signal_of(first) not in (signal.SIGTERM, signal.SIGINT):
        return []
    return [Candidate(Cause.CANCELLED, Fault.NOBODY, ENOUGH, ENOUGH, first_line.text, first_line, at=first_line.at)]
