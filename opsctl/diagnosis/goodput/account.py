"""Account for a run's time, attempt by attempt and gap by gap. Pure.

An attempt counts from its opening to its closing, or to the opening of the next one if that is earlier: of two writers
only one trains. Iterations, saves and evaluations take the time in the log. The rest of an attempt is lost before a
bad ending, and leaving otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import chain

from opsctl.run.attempts.ending import STARTED_NOTHING, Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.logs.spans import Span


class Part(StrEnum):
    """A part of a run's time. Every millisecond belongs to one part."""

    TRAINED = "trained"  # iterations that were kept
    EVALUATED = "evaluated"
    SAVED = "saved"  # the training waited for saves
    STARTED = "started"  # from the job's start to its first iteration
    LEFT = "left"  # from the last iteration to the end, after a good ending
    UNDER_WAY = "under way"  # of the running attempt, since its last line in the log
    LOST = "lost"  # discarded iterations, failed starts, hangs and the rest before a bad ending; has a cause
    WAITED = "waited"  # in the queue
    IDLE = "idle"  # no job of the run in the queue
    UNKNOWN = "not known"


#: A part, and the cause of lost time.
Key = tuple[Part, str]


@dataclass
class Amounts:
    """Milliseconds of each part, of wall time and of all GPUs."""

    wall_ms: dict[Key, int] = field(default_factory=dict)
    gpu_ms: dict[Key, int] = field(default_factory=dict)

    def add(self, amounts: Mapping[Key, int], gpus: int = 0) -> None:
        """Add amounts of wall time with that number of allocated GPUs."""
        for key, ms in ((key, ms) for key, ms in amounts.items() if ms):
            self.wall_ms[key] = self.wall_ms.get(key, 0) + ms
            self.gpu_ms[key] = self.gpu_ms.get(key, 0) + ms * gpus

    @property
    def whole_ms(self) -> int:
        """Return the wall time."""
        return sum(self.wall_ms.values())

    @property
    def whole_gpu_ms(self) -> int:
        """Return the GPU time."""
        return sum(self.gpu_ms.values())

    def of(self, part: Part) -> int:
        """Return the wall time of a part over all causes, in milliseconds."""
        return sum(ms for (one, _), ms in self.wall_ms.items() if one is part)

    def largest_first(self) -> Iterator[tuple[Key, int, int]]:
        """Return (part and cause, milliseconds of wall time, of GPU time), trained time first."""
        order = sorted(self.wall_ms.items(), key=lambda item: (item[0][0] is not Part.TRAINED, -item[1], item[0]))
        return ((key, ms, self.gpu_ms.get(key, 0)) for key, ms in order if ms)


def fitted(amounts: Iterable[tuple[Key, int]], whole_ms: int, rest: Key) -> dict[Key, int]:
    """Fill `amounts` up to `whole_ms` with `rest`; scale them down to it, exactly, if they are more."""
    found: dict[Key, int] = {}
    for key, ms in amounts:
        found[key] = found.get(key, 0) + max(0, ms)
    total = sum(found.values())
    if total <= whole_ms:
        found[rest] = found.get(rest, 0) + whole_ms - total
        return found
    return scaled(found, whole_ms)


def scaled(amounts: Mapping[Key, int], whole_ms: int) -> dict[Key, int]:
    """Scale the amounts to another total, exact to the millisecond."""
    total = sum(amounts.values())
    if total == 0:
        return {(Part.UNKNOWN, ""): whole_ms} if whole_ms else {}
    found = {key: ms * whole_ms // total for key, ms in amounts.items()}
    largest = max(found, key=lambda key: found[key])
    found[largest] += whole_ms - sum(found.values())
    return found


#: Endings after which nothing is lost: the training left by itself or on request, after a save.
LEFT_WELL = frozenset(
    {
        *(Ending.KILL_SWITCH, Ending.STOP_REQUEST, Ending.EXIT_DURATION, Ending.EXIT_INTERVAL, Ending.EXIT_SAMPLES),
        *(Ending.FINISHED, Ending.COMPLETED, Ending.REQUEUED, Ending.OVERTAKEN),
    }
)
#: The cause of iterations that a rollback discarded.
ROLLED_BACK = "rollback"


@dataclass(frozen=True)
class Stay:
    """The time of an attempt on the run's clock."""

    attempt: Attempt
    begins_ms: int
    ends_ms: int
    kept_until: float  # the last iteration that later attempts continued from
    span: Span | None
    in_memory: int = 0  # the iteration that the next attempt resumed from, if that came from host memory

    @property
    def cause(self) -> str:
        """Return the cause of its failure, else the reason of its end."""
        verdict = self.attempt.verdict
        return verdict.cause if verdict is not None and verdict.is_known else str(self.attempt.reason or "")

    @property
    def ended_badly(self) -> bool:
        """Return True if it did not leave by itself or on request."""
        return self.attempt.reason is not None and self.attempt.reason not in LEFT_WELL

    @property
    def own_kept(self) -> float:
        """Return the last iteration in its own checkpoints or in memory; infinite while it runs."""
        return float("inf") if self.attempt.is_open else max(self.attempt.checkpoint_at_end or 0, self.in_memory)

    def lost_iterations(self) -> int:
        """Return the number of its iterations that were lost at its end."""
        last = self.last_iteration
        return max(0, last - max(int(self.own_kept), self.begun_at)) if last and not self.attempt.is_open else 0

    @property
    def begun_at(self) -> int:
        """Return the iteration that it resumed from."""
        return max(self.attempt.iteration_at_start or 0, self.span.begins_at if self.span is not None else 0)

    @property
    def last_iteration(self) -> int | None:
        """Return the last iteration that it completed, as far as known."""
        logged = self.span.iterations[-1] if self.span is not None and self.span.iterations else None
        known = [one for one in (logged, self.attempt.iteration_at_end) if one is not None]
        return max(known, default=None)


def stays(attempts: Sequence[Attempt], spans: Sequence[Span], until: datetime) -> list[Stay]:
    """Return the attempts that may have trained, in order and without overlaps, even if nodes' clocks differ."""
    tried = [one for one in attempts if one.opened_at is not None and one.reason not in STARTED_NOTHING]
    begins: list[int] = []
    for one in tried:
        assert one.opened_at is not None
        begins.append(max(milliseconds(one.opened_at), *begins[-1:]) if begins else milliseconds(one.opened_at))
    by_attempt = {(span.attempt, span.job_id): span for span in spans}
    kept, in_memory = float("inf"), 0
    found: list[Stay] = []
    for number in reversed(range(len(tried))):
        one = tried[number]
        following = begins[number + 1] if number + 1 < len(tried) else milliseconds(until)
        closed = milliseconds(one.closed_at) if one.closed_at is not None else following
        ends = max(begins[number], min(closed, following))
        stay = Stay(one, begins[number], ends, kept, by_attempt.get((one.number, one.job_id)), in_memory)
        found.append(stay)
        kept = min(kept, stay.begun_at)
        in_memory = stay.begun_at if stay.begun_at > (one.iteration_at_start or 0) else 0
    return found[::-1]


def inside(stay: Stay) -> dict[Key, int]:
    """Return the parts of an attempt's time; they add up to it."""
    whole_ms = stay.ends_ms - stay.begins_ms
    span = stay.span
    if span is None:
        return {(Part.UNKNOWN, ""): whole_ms}
    amounts = _iterations(stay, span)
    has_trained = bool(amounts)
    amounts.append(((Part.EVALUATED, ""), _ms(sum(span.evaluations_s))))
    amounts.append(((Part.SAVED, ""), _ms(sum(span.saves_s))))
    bad: Key = (Part.LOST, stay.cause)
    if span.trains_from is not None and (has_trained or not stay.ended_badly):
        started_ms = milliseconds(span.trains_from) - stay.begins_ms
        amounts.append(((Part.STARTED, ""), min(max(0, started_ms), whole_ms)))
    if stay.ended_badly and (span.trains_from is not None or not has_trained):
        rest = bad
    elif stay.attempt.is_open:
        rest = (Part.UNDER_WAY if has_trained else Part.STARTED, "")
    elif span.trains_from is None:
        rest = (Part.UNKNOWN, "")
    else:
        rest = (Part.LEFT, "")
    return fitted(amounts, whole_ms, rest)


def _iterations(stay: Stay, span: Span) -> list[tuple[Key, int]]:
    """Return the time of kept and lost iterations. A log line that was partly kept is divided by iterations."""
    found: list[tuple[Key, int]] = []
    logged, seconds_logged, after = span.iterations, span.seconds, list[tuple[int, float]]()
    last = stay.last_iteration
    if logged and last is not None and last > logged[-1] and not stay.attempt.is_open:
        # Iterations after the last line take as long as those before it.
        count = logged[-1] - (logged[-2] if len(logged) > 1 else span.begins_at)
        after.append((last, seconds_logged[-1] / max(1, count) * (last - logged[-1])))
    kept_s = own_s = rolled_s = 0.0
    before = span.begins_at
    for iteration, seconds in chain(zip(logged, seconds_logged, strict=True), after):
        each = seconds / max(1, iteration - before)
        kept_to = max(before, min(iteration, stay.own_kept, stay.kept_until))
        own_to = max(kept_to, min(iteration, stay.own_kept))
        kept_s += each * (kept_to - before)
        rolled_s += each * (own_to - kept_to)
        own_s += each * (iteration - own_to)
        before = iteration
    for key, seconds in (
        ((Part.TRAINED, ""), kept_s),
        ((Part.LOST, ROLLED_BACK), rolled_s),
        ((Part.LOST, stay.cause), own_s),
    ):
        if seconds:
            found.append((key, _ms(seconds)))
    return found


def account(
    attempts: Sequence[Attempt],
    spans: Sequence[Span],
    submitted: Sequence[datetime],
    gpus: Mapping[str, int],
    until: datetime,
    is_queued: bool | None,
    since: datetime | None = None,
) -> Amounts:
    """Add up the time from the first submission, or `since`. gpus: attempt id -> number. is_queued: None if unknown."""
    found = Amounts()
    for one in stretches(attempts, spans, submitted, until, is_queued, since):
        found.add(one.amounts, gpus.get(one.stay.attempt.id, 0) if one.stay is not None else 0)
    return found


@dataclass(frozen=True)
class Stretch:
    """A stretch of a run's time, in milliseconds since the epoch, with its parts."""

    begins_ms: int
    ends_ms: int
    stay: Stay | None  # None: between attempts
    amounts: dict[Key, int]


def stretches(
    attempts: Sequence[Attempt],
    spans: Sequence[Span],
    submitted: Sequence[datetime],
    until: datetime,
    is_queued: bool | None,
    since: datetime | None = None,
) -> Iterator[Stretch]:
    """Yield the whole time of `account` in order and without gaps, from the first submission."""
    first = first_of(attempts, submitted)
    if first is None:
        return
    at_ms, last_ms = milliseconds(first), milliseconds(until)
    if since is not None:
        at_ms = max(at_ms, milliseconds(since))
    first_ms = at_ms
    for stay in stays(attempts, spans, until):
        begins, ends = (min(max(ms, first_ms), last_ms) for ms in (stay.begins_ms, stay.ends_ms))
        if begins > at_ms:
            yield Stretch(at_ms, begins, None, _gap(at_ms, begins, _submitted(stay.attempt, submitted)))
        if ends > begins:
            yield Stretch(begins, ends, stay, scaled(inside(stay), ends - begins))
        at_ms = max(at_ms, ends)
    if last_ms > at_ms:
        if is_queued is None:
            yield Stretch(at_ms, last_ms, None, {(Part.UNKNOWN, ""): last_ms - at_ms})
        else:
            gap = _gap(at_ms, last_ms, max(submitted, default=None) if is_queued else until)
            yield Stretch(at_ms, last_ms, None, gap)


def first_of(attempts: Sequence[Attempt], submitted: Sequence[datetime]) -> datetime | None:
    """Return the start of a run's time; None before the first submission."""
    return min([*submitted, *filter(None, (one.chain_submitted_at or one.opened_at for one in attempts))], default=None)


def _submitted(attempt: Attempt, submitted: Sequence[datetime]) -> datetime | None:
    """Return when its chain was submitted; without a record, the last submission before it opened."""
    if attempt.chain_submitted_at is not None or attempt.opened_at is None:
        return attempt.chain_submitted_at
    return max((one for one in submitted if one <= attempt.opened_at), default=None)


def _gap(begins_ms: int, ends_ms: int, submitted_at: datetime | None) -> dict[Key, int]:
    """Divide the time between two attempts into idle and, from the next submission, waiting."""
    if submitted_at is None:
        return {(Part.UNKNOWN, ""): ends_ms - begins_ms}
    queued_ms = min(max(begins_ms, milliseconds(submitted_at)), ends_ms)
    return {(Part.IDLE, ""): queued_ms - begins_ms, (Part.WAITED, ""): ends_ms - queued_ms}


def estimated(attempts: Sequence[Attempt], seconds_per_iteration: float, reached: int | None = None) -> list[Span]:
    """Return spans for a constant time per iteration. reached: the last iteration of an open attempt, if known."""
    found = []
    for one in attempts:
        span = Span(one.number, one.job_id, one.opened_at, one.iteration_at_start or 0)
        last = reached if one.is_open else one.iteration_at_end
        if last is not None and last > span.begins_at:
            span.iterations.append(last)
            span.seconds.append(seconds_per_iteration * (last - span.begins_at))
        found.append(span)
    return found


def milliseconds(moment: datetime) -> int:
    """Return milliseconds since the epoch."""
    return round(moment.timestamp() * 1000)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
