"""Checks of a running training's speed: it logs, at its usual speed, and with the planned throughput."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from opsctl.monitoring.check import Settings, check
from opsctl.monitoring.finding import Finding, Severity, finding, length_words, since_words, warning
from opsctl.monitoring.series import finite, middle, newest, span_words, spread, trained_s
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.logs.measurements import standstill_s
from opsctl.run.logs.records import Measured
from opsctl.slurm.states import State
from opsctl.slurm.types import Job
from trainer.formats.logs.training_line import TrainingLine

#: silence: nothing was ever logged, and what the program has to build first is not known.
_FIRST_START_MOST = timedelta(hours=2)
#: silence: past the limit, and past it twice, the training will not continue by itself.
_LONG = timedelta(hours=1)
#: speed, throughput: lines of the log and seconds of the newest stretch at least; iterations of each.
_LINES, _SECONDS, _SPEED_ITERATIONS, _THROUGHPUT_ITERATIONS = 5, 600.0, 20, 30
#: speed: stretches of earlier lines that give the usual speed: so many are needed, so many newest usual ones count.
_STRETCHES_LEAST, _STRETCHES = 3, 40
#: speed: a rise has to be so many times what the usual stretches differ among each other.
_NOISE = 4.0
#: speed: iterations are compared whose batches are no smaller than this share of the present one.
_LIKE = 0.8
#: throughput: share of `[expect] tflops` that is the least, where `[watch] tflops_least` is not set.
_SHARE = 0.85
#: throughput: once below, it has to be so much above to be healthy again.
_STEADY = 1.01


@dataclass(frozen=True)
class Standstill:
    """A running training that logs nothing."""

    since: datetime
    silent: timedelta
    limit: timedelta  # longer than this is too long
    usual_s: float  # of an iteration

    def describe(self) -> str:
        """Return how long, and what is usual."""
        return f"no iteration for {length_words(self.silent)}, usually {self.usual_s:.3g} s"


def standstill(snapshot: Snapshot, settings: Settings) -> Standstill | None:
    """Return since when the running task logs nothing; None where it continues, or what is usual is not known."""
    job = snapshot.running
    if job is None or job.state != State.RUNNING:
        return None
    typical_s, logged_at = snapshot.measured.seconds_per_iteration, snapshot.last_logged_at
    if not typical_s or logged_at is None:
        return None
    since = logged_at if job.started_at is None else max(logged_at, job.started_at)
    silent = (snapshot.log_read_at or snapshot.now) - since
    limit = _silence_limit(snapshot, settings, typical_s, is_starting=_is_starting(snapshot, job, logged_at))
    return None if silent < limit else Standstill(since, silent, limit, typical_s)


@check(Part.QUEUE | Part.LOG | Part.ATTEMPTS)
def silence(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check whether the running training logs, or hangs.

    1: no iteration was logged for a minute and 20 usual ones (or 10, if these take 10 minutes), or for `[watch]
    silent_most`. A save and an evaluation add the time that they took lately, or 10 minutes if that is not known. After
    a start half an hour is added until the first iteration. 2: for twice as long, and an hour more.
    """
    job = snapshot.running
    if job is None or job.state != State.RUNNING:
        return
    found = standstill(snapshot, settings)
    if found is not None:
        yield _silent(snapshot, job, f"{found.describe()}: opsctl logs", found.since, found.limit)
    elif not snapshot.measured.seconds_per_iteration or snapshot.last_logged_at is None:
        most_s = settings.seconds_of("silent_most")
        limit = _FIRST_START_MOST if most_s is None else timedelta(seconds=most_s)
        # Without a log, or with one that is not to be believed, it is not known what was logged.
        if snapshot.log_written_at is not None and job.started_at is not None:
            ran = snapshot.now - job.started_at
            text = f"it has run for {length_words(ran)} and no iteration was ever logged: opsctl logs"
            if ran >= limit:
                yield _silent(snapshot, job, text, job.started_at, limit)


def _silent(snapshot: Snapshot, job: Job, text: str, since: datetime, limit: timedelta) -> Finding:
    last = snapshot.measured.last_iteration
    return finding(
        Severity.CRITICAL if snapshot.now - since >= max(2 * limit, limit + _LONG) else Severity.WARNING,
        text,
        since=since,
        evidence=(
            f"job {job.display_id} runs on {job.node_count} nodes; nothing logged {since_words(since)}",
            f"the last was iteration {last.iteration}" if last else "",
            f"more than {length_words(limit)} is too long here",
        ),
        todo="opsctl logs; opsctl request stacks; then opsctl request requeue --why hang",
    )


def _silence_limit(snapshot: Snapshot, settings: Settings, typical_s: float, is_starting: bool) -> timedelta:
    """Return how long nothing may be logged."""
    measured, expect = snapshot.measured, settings.expect
    evaluation_s = measured.longest_evaluation_seconds or expect.evaluation_seconds
    save_s = measured.longest_save_seconds or expect.save_seconds
    pauses_s = (evaluation_s or 0.0) + (save_s or 0.0)
    per_line = _iterations_per_line(measured, settings)
    may_pause = (not save_s and _may_save(measured, settings, per_line)) or (
        not evaluation_s and _may_evaluate(measured, settings, per_line)
    )
    most_s = settings.seconds_of("silent_most")
    return timedelta(seconds=standstill_s(typical_s, most_s, pauses_s, is_starting, per_line, may_pause))


def _may_save(measured: Measured, settings: Settings, per_line: int) -> bool:
    """Return whether the log may be waiting for a save; without a known schedule it always may."""
    last = measured.last_iteration
    if measured.is_saving or settings.saves is None or last is None:
        return True
    due = settings.saves.next_after(last.iteration - 1)
    return due is not None and due < last.iteration + per_line


def _may_evaluate(measured: Measured, settings: Settings, per_line: int) -> bool:
    last, interval = measured.last_iteration, settings.evaluates_every
    if interval is None or last is None:
        return True
    return bool(interval) and -last.iteration % interval < per_line


def _iterations_per_line(measured: Measured, settings: Settings) -> int:
    """Return how many iterations the next line covers at most; the first line after a start does not show it."""
    return max(measured.iterations_per_line, settings.log_interval or 1)


def _is_starting(snapshot: Snapshot, job: Job, logged_at: datetime) -> bool:
    """Return whether the running task has logged no iteration of its own yet, or is between two attempts."""
    last = snapshot.measured.last_iteration
    if snapshot.attempts and not snapshot.attempts[-1].is_open:
        return True
    own = [one for one in snapshot.attempts if one.is_open and one.job_id == job.job_id]
    begun_at = own[-1].iteration_at_start if own else None
    if begun_at is not None and last is not None and last.iteration <= begun_at:
        return True
    return job.started_at is not None and logged_at <= job.started_at


@dataclass(frozen=True)
class Slower:
    """The newest stretch compared with the usual."""

    now_s: float  # of an iteration at the present batch size
    usual_s: float
    needed: float  # from which ratio on it is a finding
    lines: Sequence[TrainingLine]

    @property
    def ratio(self) -> float:
        """1.06: six per cent slower."""
        return self.now_s / self.usual_s


def compare(series: Sequence[TrainingLine], slower_percent: float) -> Slower | None:
    """Compare the newest iterations with those before; None where there are too few.

    Going forward in time, a stretch counts for what is usual unless it is slow itself: what stays slow for a day does
    not become usual by that.
    """
    if not series:
        return None
    batch = series[-1].global_batch_size
    lines = [one for one in series if finite(one.seconds_per_iteration) and _is_like(one.global_batch_size, batch)]
    begin = newest(lines, _SPEED_ITERATIONS, _LINES, _SECONDS)
    if begin < 0:
        return None
    width = len(lines) - begin
    cost = [(one.seconds_per_iteration or 0.0) / (one.global_batch_size or 1) for one in lines]
    usual: list[float] = []
    # Whole stretches, counted back from the newest one.
    for start in range(begin % width, begin, width):
        value = middle(cost[start : start + width])
        if not _is_slow(usual, value, slower_percent):
            usual = [*usual, value][-_STRETCHES:]
    if len(usual) < _STRETCHES_LEAST:
        return None
    factor = batch or 1
    needed = _needed(usual, slower_percent)
    return Slower(middle(cost[begin:]) * factor, middle(usual) * factor, needed, lines[begin:])


def _is_slow(usual: Sequence[float], value: float, slower_percent: float) -> bool:
    return len(usual) >= _STRETCHES_LEAST and value > middle(usual) * _needed(usual, slower_percent)


def _needed(usual: Sequence[float], slower_percent: float) -> float:
    return 1.0 + max(slower_percent / 100.0, _NOISE * spread(usual) / middle(usual))


def _is_like(one: int | None, present: int | None) -> bool:
    if one is None or present is None:
        return one is present
    return _LIKE * present <= one <= present / _LIKE


@check(Part.SERIES | Part.LOG | Part.ATTEMPTS | Part.PROGRESS)
def speed(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check whether iterations take longer than before.

    1: the median of the newest 20 iterations, and 10 minutes, is `[watch] slower_percent` above that of the iterations
    before, and above their usual variation. The check compares the time per sample among iterations with about the same
    batch size and the same number of nodes. Ramp, evaluations and saves are therefore not findings.
    """
    found = None if snapshot.is_finished else compare(_on_as_many_nodes(snapshot), settings.watch.slower_percent)
    if found is None or found.ratio <= found.needed:
        return
    tflops = [one.tflops for one in found.lines if one.tflops and finite(one.tflops)]
    logged_at = snapshot.last_logged_at
    yield warning(
        f"an iteration takes {found.now_s:.4g} s, {100 * (found.ratio - 1):.1f} % more than the usual "
        f"{found.usual_s:.4g} s: a slow node?",
        since=logged_at - timedelta(seconds=trained_s(found.lines)) if logged_at else None,
        evidence=(
            f"median of {span_words(found.lines)}: {found.now_s:.4g} s; before: {found.usual_s:.4g} s",
            f"{middle(tflops):.4g} TFLOPs per GPU now" if tflops else "",
            f"more than {100 * (found.needed - 1):.1f} % is a finding here",
        ),
        todo="opsctl attempts names its nodes; leave out some at a time: opsctl submit --exclude NODES",
    )


def _on_as_many_nodes(snapshot: Snapshot) -> Sequence[TrainingLine]:
    """Return the iterations since the run continued on another number of nodes; all of them where it did not."""
    width, begun = 0, None
    for attempt in snapshot.attempts:
        if attempt.nodes and len(attempt.nodes) != width:
            width, begun = len(attempt.nodes), (attempt.iteration_at_start or 0) if width else None
    return snapshot.series if begun is None else [one for one in snapshot.series if one.iteration > begun]


@check(Part.SERIES | Part.PROGRESS)
def throughput(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check that each GPU reaches the planned TFLOP/s.

    1: the median of the newest 30 iterations is below `[watch] tflops_least`; without that, below 85 % of `[expect]
    tflops`. With neither, and while the batch size grows, nothing is reported.
    """
    watch, expect = settings.watch, settings.expect
    least = watch.tflops_least or (_SHARE * expect.tflops if expect.tflops else None)
    lines = [one for one in snapshot.series if finite(one.tflops)]
    begin = newest(lines, _THROUGHPUT_ITERATIONS, _LINES, _SECONDS)
    if least is None or begin < 0 or snapshot.is_finished:
        return
    # A window of which some is from before still shows for a while what was so.
    lines, before = lines[begin:], lines[:begin][-len(lines[begin:]) :]
    batches = {one.global_batch_size for one in lines}
    full = settings.global_batch_size
    if len(batches) > 1 or (full is not None and batches != {full} and batches != {None}):
        return
    now = middle(one.tflops or 0.0 for one in lines)
    was_below = bool(before) and middle(one.tflops or 0.0 for one in before) < least
    if now < (least * _STEADY if was_below else least):
        source = "[watch] tflops_least" if watch.tflops_least else f"{100 * _SHARE:.0f} % of [expect] tflops"
        yield warning(
            f"each GPU gives {now:.4g} TFLOPs, less than {least:.4g} ({source})",
            evidence=(f"median of {span_words(lines)}: {now:.4g} TFLOPs per GPU",),
            todo="opsctl plan shows the expected values; opsctl attempts names the nodes",
        )
