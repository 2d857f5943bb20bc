"""The account of a run's time as text and as JSON, with the best save interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.output import table_lines
from opsctl.core.timestamps import iso
from opsctl.diagnosis.goodput.account import ROLLED_BACK, Amounts, Key, Part, Stay
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.verdict import Cause
from opsctl.slurm.durations import format_duration
from trainer.formats.json_text import Moment

#: Fewer failures are too few: with this many the mean time between them is known to a factor of two.
ENOUGH_FAILURES = 3


#: The first save interval as a share of the time between failures, while no save was measured: half of it is redone.
UNKNOWN_SHARE = 0.1


@dataclass(frozen=True)
class Best:
    """The save interval with the least expected loss."""

    seconds: float
    iterations: int
    lost_share: float  # expected at it, of the training's time
    lost_share_now: float | None  # at the current interval; None if it varies


def best_interval_s(save_s: float, between_failures_s: float) -> float:
    """Return the seconds of training between saves with the least loss.

    Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
    Computer Systems 22 (2006), eq. 37; its first term is Young's (1974).
    """
    if save_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = save_s / (2 * between_failures_s)
    return math.sqrt(2 * save_s * between_failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def lost_share(interval_s: float, save_s: float, between_failures_s: float) -> float:
    """Return the share lost to saves and to redone work, half an interval and a save per failure; at most 1."""
    if interval_s <= 0:
        return 1.0
    return min(1.0, save_s / (interval_s + save_s) + (interval_s / 2 + save_s) / between_failures_s)


def best(save_s: float, between_failures_s: float, seconds_per_iteration: float, interval_now: int | None) -> Best:
    """Return the best interval in iterations, with the loss of the current one."""
    iterations = max(1, round(best_interval_s(save_s, between_failures_s) / seconds_per_iteration))
    at_best = lost_share(iterations * seconds_per_iteration, save_s, between_failures_s)
    now = None if not interval_now else lost_share(interval_now * seconds_per_iteration, save_s, between_failures_s)
    return Best(iterations * seconds_per_iteration, iterations, at_best, now)


def at_first(between_failures_s: float, seconds_per_iteration: float) -> int:
    """Return the iterations between saves for a training that failed too early to measure a save."""
    return max(1, round(UNKNOWN_SHARE * between_failures_s / seconds_per_iteration))


#: The advice for the largest part other than training; for lost time, by its cause.
_TODO = {
    Part.WAITED: "shorter jobs and jobs on fewer nodes start sooner. Keep a queued array behind the running one",
    Part.IDLE: "keep jobs in the queue: set [array] keep_queued, and use opsctl refill or opsctl cron start",
    Part.STARTED: "use longer jobs ([slurm] time), which start less often. To see what slows a start: opsctl logs",
    Part.EVALUATED: "evaluate less: eval_interval, eval_iters",
    Part.SAVED: "save less often, or in the background: save_interval, async_save",
    Part.UNKNOWN: "the log does not show the reason. See: opsctl logs",
    Part.LEFT: "tasks take long to exit. To see what they do after the last iteration: opsctl logs",
    Part.UNDER_WAY: "",
    Part.TRAINED: "",
}
_LOST_TODO = {
    ROLLED_BACK: "rollbacks discarded iterations. See: opsctl checkpoints list",
    Cause.HANG: "to see the ranks that hung: opsctl attempts. A lower [watch] silent_most ends a hang sooner",
    Ending.TIME_LIMIT: "let jobs exit earlier: increase [slurm] exit_margin",
    Ending.CANCELLED: "stop jobs with opsctl request stop instead of cancelling them",
}
#: The parts as people read them; `--json` has the names of `Part`.
WORDS: dict[str, str] = {
    Part.TRAINED: "training",
    Part.EVALUATED: "evaluating",
    Part.SAVED: "saving",
    Part.STARTED: "starting",
    Part.LEFT: "exiting",
    Part.UNDER_WAY: "not logged yet",
    Part.WAITED: "waiting in the queue",
    Part.IDLE: "no job in the queue",
    Part.UNKNOWN: "unknown",
}
_LOST_OTHERWISE = "to see the failed attempts: opsctl attempts"


class PrintedPart(Struct, frozen=True, kw_only=True):
    """One part of a run's time."""

    part: Annotated[
        str,
        Meta(
            description="`trained`, `evaluated`, `saved`, `started`, `left`, `under way`, `lost`, "
            "`waited`, `idle` or `not known`. See docs/goodput.md."
        ),
    ]
    cause: Annotated[str, Meta(description="Cause of lost time; else empty.")]
    wall_s: Annotated[float, Meta(description="Seconds of wall time.")]
    wall_percent: Annotated[float, Meta(description="Percent of the wall time.")]
    gpu_hours: Annotated[float, Meta(description="Hours of all GPUs.")]


class PrintedSaveInterval(Struct, frozen=True, kw_only=True):
    """The save interval with the least loss, by measured saves and failures."""

    failures: Annotated[int, Meta(description="Attempts that trained and failed.")]
    between_failures_s: Annotated[float | None, Meta(description="Mean seconds between failures; null if none.")]
    save_s: Annotated[float | None, Meta(description="Median seconds for which a save stops the training.")]
    iterations_now: Annotated[int | None, Meta(description="Iterations between saves now; null if it varies.")]
    iterations_best: Annotated[
        int | None,
        Meta(description="The best interval, or a short one before the first save; null if unknown."),
    ]
    lost_percent_now: Annotated[float | None, Meta(description="Expected loss at the current interval, in percent.")]
    lost_percent_best: Annotated[float | None, Meta(description="Expected loss at the best interval, in percent.")]


class GoodputReport(Struct, frozen=True, kw_only=True):
    """The account of a run's time. The parts add up to the whole, to the millisecond."""

    since: Annotated[Moment, Meta(description="Start: the first submission, or `--since`.")]
    until: Annotated[Moment, Meta(description="End: now, or the end of a finished training.")]
    wall_s: Annotated[float, Meta(description="Seconds between the two.")]
    gpu_hours: Annotated[float, Meta(description="Hours of all allocated GPUs.")]
    trained_percent: Annotated[float, Meta(description="Percent of the wall time in iterations that were kept.")]
    trained_gpu_percent: Annotated[float | None, Meta(description="The same of the GPU hours; null without GPUs.")]
    attempts: Annotated[int, Meta(description="Attempts that may have trained.")]
    iterations_lost: Annotated[int, Meta(description="Iterations lost at the end of attempts.")]
    parts: Annotated[list[PrintedPart], Meta(description="The parts, `trained` first, then the largest.")]
    save_interval: Annotated[PrintedSaveInterval, Meta(description="The best save interval.")]
    next: Annotated[str, Meta(description="The largest part other than training, and advice.")]


def report(
    amounts: Amounts,
    placed: Sequence[Stay],
    since: datetime,
    until: datetime,
    seconds_per_iteration: float | None,
    interval_now: int | None,
) -> GoodputReport:
    """Return the report. interval_now: iterations between saves; None if it varies."""
    whole, gpus = amounts.whole_ms, amounts.whole_gpu_ms
    return GoodputReport(
        since=since,
        until=until,
        wall_s=whole / 1000,
        gpu_hours=gpus / 3_600_000,
        trained_percent=_percent(amounts.of(Part.TRAINED), whole),
        trained_gpu_percent=_percent(amounts.gpu_ms.get((Part.TRAINED, ""), 0), gpus) if gpus else None,
        attempts=len(placed),
        iterations_lost=sum(stay.lost_iterations() for stay in placed),
        parts=[
            PrintedPart(
                part=part, cause=cause, wall_s=ms / 1000, wall_percent=_percent(ms, whole), gpu_hours=gpu / 3_600_000
            )
            for (part, cause), ms, gpu in amounts.largest_first()
        ],
        save_interval=save_interval(placed, seconds_per_iteration, interval_now),
        next=what_next(amounts),
    )


def save_interval(
    placed: Sequence[Stay], seconds_per_iteration: float | None, interval_now: int | None
) -> PrintedSaveInterval:
    """Return the best save interval, as far as failures and saves were seen."""
    trained = [stay for stay in placed if (stay.last_iteration or 0) > stay.begun_at]
    failures = sum(stay.ended_badly for stay in trained)
    ran_s = sum(stay.ends_ms - stay.begins_ms for stay in trained) / 1000
    saves = sorted(seconds for stay in placed if stay.span is not None for seconds in stay.span.saves_s)
    save_s = (saves[len(saves) // 2] + saves[~(len(saves) // 2)]) / 2 if saves else None
    between_s = ran_s / failures if failures else None
    found, iterations = None, None
    if failures >= ENOUGH_FAILURES and between_s and seconds_per_iteration:
        if save_s:
            found = best(save_s, between_s, seconds_per_iteration, interval_now)
            iterations = found.iterations
        elif not saves and not any(stay.attempt.made_checkpoint for stay in placed):
            iterations = at_first(between_s, seconds_per_iteration)
    return PrintedSaveInterval(
        failures=failures,
        between_failures_s=between_s,
        save_s=save_s,
        iterations_now=interval_now,
        iterations_best=iterations,
        lost_percent_now=None if found is None or found.lost_share_now is None else 100 * found.lost_share_now,
        lost_percent_best=100 * found.lost_share if found else None,
    )


def what_next(amounts: Amounts) -> str:
    """Return the largest part other than training, with advice; empty if there is none."""
    others = [(ms, key) for key, ms in amounts.wall_ms.items() if ms and key[0] not in (Part.TRAINED, Part.UNDER_WAY)]
    if not others:
        return ""
    ms, key = max(others)
    share = f"{_percent(ms, amounts.whole_ms):.0f} %"
    return f"{words(key)} took {share} of the time, the most besides training: {_todo(key)}"


def words(key: Key) -> str:
    """Return the part in words: `lost to node-failure`, `waiting in the queue`."""
    return WORDS.get(key[0], name_of(key))


def name_of(key: Key) -> str:
    """Return the name of the part: `lost to node-failure`, `waited`."""
    part, cause = key
    return f"lost to {cause or 'an unknown end'}" if part is Part.LOST else str(part)


def lines(found: GoodputReport) -> list[str]:
    """Return the lines of the report."""
    rows = [("", "WALL TIME", "SHARE", "GPU HOURS")]
    for one in found.parts:
        name = words((Part(one.part), one.cause))
        rows.append((name, format_duration(one.wall_s), f"{one.wall_percent:.1f} %", f"{one.gpu_hours:.1f}"))
    rows.append(("total", format_duration(found.wall_s), "100.0 %", f"{found.gpu_hours:.1f}"))
    table = table_lines(rows, "<>")
    of_gpus = "" if found.trained_gpu_percent is None else f", {found.trained_gpu_percent:.1f} % of the GPU hours"
    head = f"since {iso(found.since, 'minutes')}: {found.trained_percent:.1f} % of the time in training{of_gpus}"
    lost = f"{found.iterations_lost} iterations of {found.attempts} attempts were lost" if found.iterations_lost else ""
    return [*filter(None, [head, lost]), *table, interval_line(found.save_interval), *filter(None, [found.next])]


def interval_line(found: PrintedSaveInterval) -> str:
    """Return the line on failures, saves and the best save interval."""
    now = "" if found.iterations_now is None else f"; now every {found.iterations_now} iterations"
    if found.iterations_best is not None and found.between_failures_s is not None and found.save_s is None:
        return (
            f"best save interval: no checkpoint was saved and {found.failures} attempts failed, one every "
            f"{format_duration(found.between_failures_s)}: {found.iterations_best} iterations as a start{now}"
        )
    if found.iterations_best is None or found.between_failures_s is None or found.save_s is None:
        if found.failures >= ENOUGH_FAILURES:
            why = "the log does not show the duration of a save or an iteration"
        else:
            why = f"unknown until {ENOUGH_FAILURES} attempts have failed ({found.failures} so far)"
        return f"best save interval: {why}{now}"
    lost_now = "" if found.lost_percent_now is None else f", which loses {found.lost_percent_now:.1f} %"
    return (
        f"best save interval: {found.iterations_best} iterations, which loses {found.lost_percent_best:.1f} % of the "
        f"time to saves and failures{now}{lost_now} ({found.failures} failures, one every "
        f"{format_duration(found.between_failures_s)}; a save stops the training for {found.save_s:.1f} s)"
    )


def _todo(key: Key) -> str:
    part, cause = key
    return _LOST_TODO.get(cause, _LOST_OTHERWISE) if part is Part.LOST else _TODO[part]


def _percent(ms: int, whole_ms: int) -> float:
    return 100 * ms / whole_ms if whole_ms else 0.0
