"""The tables from a log alone: progress, speed, MFU, the expected end, and its starts. Pure."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from opsctl.core.units import count_words
from opsctl.monitoring.series import middle, quantile
from opsctl.run.config.schema import GpuTable, SlurmTable
from opsctl.run.planning.gpus import planned_peak
from opsctl.run.planning.sizes import model_shape
from opsctl.slurm.durations import format_duration
from opsctl.ui.report.curves import LATEST_S, Course
from opsctl.ui.report.html_page import Figure, Table
from opsctl.ui.report.rows import Utilisation
from trainer.formats.logs.log_lines import write_zone
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options
from trainer.recipe.sizes import MODEL_PASSES, tflops_per_gpu

#: Iterations that say what is typical now.
_NEWEST = 200
#: A nearer end than this is shown with its hour.
_CLOCK_S = 3 * 86400
#: The time whose pace tells the expected end.
_PACE_S = 28 * 86400.0


def figures(
    course: Course,
    state: str = "",
    percent: str = "",
    now_s: float | None = None,
    utilised: Utilisation | None = None,
    trained_percent: float | None = None,
) -> tuple[Figure, ...]:
    """Return the large numbers of a run, without those that are not known. percent: of the training that is done."""
    told = [("State", state, "")]
    if len(course):
        last, in_all = course.last_iteration, course.total_iterations
        percent = percent or (f"{100 * last / in_all:.1f} %" if in_all else "")
        iteration = f"iteration {last:,}" + (f" of {in_all:,}" if in_all else "")
        told.append(("Progress", percent or f"{last:,}", iteration))
        told.append(_figure("Loss", _lowest(course.column("loss"), course.column("iteration"))))
        told.append(("Tokens", (_count(course.newest("tokens")) or "").partition(" (")[0], ""))
        told.append(_figure("Tokens per second", _typical(course.column("tokens_per_second"), "")))
        told.append(_figure("MFU", _typical(utilised.percent if utilised else course.column("mfu"), " %")))
        left = dict(_left(course, now_s))
        done = left.get("Done", "").removeprefix("about ").partition(", ")
        told.append(("Expected end", done[0], left.get("Left at this speed", "")))
    if trained_percent is not None:
        told.append(("Goodput", f"{trained_percent:.0f} %", "of the wall time in training"))
    return tuple(Figure(name=name, value=value, note=note) for name, value, note in told if value)


def _figure(name: str, words: str | None) -> tuple[str, str, str]:
    value, _, note = (words or "").partition(", ")
    return name, value, note


def progress(
    course: Course,
    now_s: float | None = None,
    more: Sequence[tuple[str, str]] = (),
    utilised: Utilisation | None = None,
) -> Table:
    """Return progress, speed and expected end; `more` rows first. utilised: if the log has no MFU."""
    rows = [list(one) for one in more]

    def row(name: str, value: str | None) -> None:
        if value:
            rows.append([name, value])

    if len(course):
        row(
            "Iteration",
            f"{course.last_iteration:,}" + (f" of {course.total_iterations:,}" if course.total_iterations else ""),
        )
        row("Samples", _count(course.newest("samples")))
        row("Tokens", _count(course.newest("tokens")))
        row("Loss", _lowest(course.column("loss"), course.column("iteration")))
        for group, points in course.evaluations.items():
            row(f"Loss of {group}", _lowest_evaluated(points))
        row("An iteration", _typical(course.column("seconds"), " s"))
        row("Tokens per second", _typical(course.column("tokens_per_second"), ""))
        row("TFLOP/s per GPU", _typical(course.column("tflops"), ""))
        row("MFU", _typical(utilised.percent if utilised else course.column("mfu"), " %"))
        row("MFU is", utilised.source if utilised else None)
        row("Starts", str(len(course.starts)))
        row("Iterations done again", _done_again(course))
        for name, value in _left(course, now_s):
            row(name, value)
    return Table(title="Progress", headings=["What", "Now"], rows=rows)


def starts(course: Course) -> Table:
    """Return the table of the starts that trained, newest first."""
    rows = []
    for number, start in reversed([*enumerate(course.starts, 1)]):
        if start.has_trained:
            when = _moment(start.at_s, course)
            rows.append(
                [
                    start.name or f"start {number}",
                    when,
                    f"{start.first:,} to {start.last:,}",
                    f"{start.redone:,}" if start.redone else "",
                    start.ended,
                ]
            )
    headings = ["Start", "When", "Iterations", "Done again", "Ended"]
    return Table(title="Starts", headings=headings, rows=rows)


def _left(course: Course, now_s: float | None) -> list[tuple[str, str]]:
    in_all, seconds = (
        course.total_iterations,
        [one for one in course.column("seconds")[-_NEWEST:] if math.isfinite(one)],
    )
    left = in_all - course.last_iteration
    if not in_all:
        return []
    if left <= 0:
        return [("Left", "nothing: all iterations are done")]
    rows = []
    if seconds and left * middle(seconds) < LATEST_S:
        rows.append(("Left at this speed", f"{format_duration(left * middle(seconds))} of training"))
    wait_s = _seconds_left(course, now_s)
    if wait_s is not None and course.clock_s is not None:
        from_s = max(now_s or 0.0, course.clock_s)
        # A clock, and not just seconds of training; until when the calendar has days.
        if from_s > 631_152_000 and from_s + wait_s < LATEST_S:
            end = _day(from_s + wait_s) if wait_s > _CLOCK_S else _moment(from_s + wait_s, course)
            rows.append(("Done", f"about {end}, at the pace of the last four weeks with all waits"))
    return rows


def _seconds_left(course: Course, now_s: float | None) -> float | None:
    times, done = _known_pairs(course)
    if not times:
        return None
    left, samples_left = float(course.total_iterations - course.last_iteration), _samples_left(course)
    if samples_left is not None:
        done, left = list(course.column("samples")[-len(times) :]), samples_left
    return wall_seconds_left(times, done, left, max(now_s or 0.0, times[-1]))


def wall_seconds_left(times_s: Sequence[float], done: Sequence[float], left: float, until_s: float) -> float | None:
    """Return the seconds until `left` more is done, at the pace of the four weeks before `until_s`, waits included.

    times_s: ascending; done: how much was done by then. None if nothing was done in those weeks.
    """
    begin = max(0, bisect_right(times_s, until_s - _PACE_S) - 1)
    trained = done[-1] - done[begin]
    return left * (until_s - times_s[begin]) / trained if trained > 0 else None


def _done_again(course: Course) -> str | None:
    """Return how much was trained and lost, and the time that took."""
    iterations = sum(one.iterations for one in course.superseded)
    took_s = sum(one.trained_s for one in course.superseded)
    if not iterations:
        return None
    return f"{iterations:,}, {format_duration(took_s)} of training" if took_s < LATEST_S else f"{iterations:,}"


def _samples_left(course: Course) -> float | None:
    """Return the samples left: the newest batch for each iteration left. None if unknown."""
    batch, samples = course.column("batch"), course.column("samples")
    if not batch or math.isnan(batch[-1]) or any(math.isnan(one) for one in samples):
        return None
    return (course.total_iterations - course.last_iteration) * batch[-1]


def _known_pairs(course: Course) -> tuple[list[float], list[float]]:
    """Return times and iterations, from the first known time on."""
    pairs = [
        (at, iteration)
        for at, iteration in zip(course.column("at_s"), course.column("iteration"), strict=True)
        if not math.isnan(at)
    ]
    return [at for at, _ in pairs], [iteration for _, iteration in pairs]


def _lowest(losses: array[float], iterations: array[float]) -> str | None:
    best = min((one for one in zip(losses, iterations, strict=True) if math.isfinite(one[0])), default=None)
    if best is None:
        return None
    newest = next(filter(math.isfinite, reversed(losses)))
    return f"{newest:.4f}, lowest {best[0]:.4f} at {int(best[1]):,}"


def _lowest_evaluated(points: Sequence[tuple[int, float]]) -> str | None:
    """Return the newest and the lowest of an evaluation's losses; a loss may be NaN."""
    if not points:
        return None
    known = [(loss, at) for at, loss in points if math.isfinite(loss)]
    newest = f"{points[-1][1]:.4f}"
    return f"{newest}, lowest {min(known)[0]:.4f} at {min(known)[1]:,}" if known else newest


def _typical(column: array[float], unit: str) -> str | None:
    known = [one for one in column[-_NEWEST:] if math.isfinite(one)]
    if not known:
        return None
    low, high = quantile(known, 0.1), quantile(known, 0.9)
    return f"{_number(middle(known))}{unit}, mostly {_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    """Return four digits, without a power of ten for numbers from 1000 on."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def _count(value: float) -> str | None:
    return None if math.isnan(value) else f"{count_words(value)} ({value:,.0f})"


def when(moment: datetime) -> str:
    """Return `2022-03-11 14:03 +01:00`, in local time."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M} {write_zone(moment.astimezone())}"


def _moment(at_s: float | None, course: Course) -> str:
    if at_s is None or at_s < 631_152_000:
        return ""
    moment = datetime.fromtimestamp(at_s, UTC)
    return when(moment) if course.has_zone else moment.strftime("%Y-%m-%d %H:%M")


def _day(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


def utilisation(course: Course, options: Options, gpu: GpuTable, slurm: SlurmTable) -> Utilisation | None:
    """Compute the MFU from the peak of the run file's GPU; None if the log has it or the peak is unknown.

    What the network asks for is the log's model TFLOP/s, or where its two decimals say nothing of a small model, the
    model's FLOPs in the time that an iteration took (`trainer.recipe.sizes`).
    """
    shape = model_shape(options)
    if shape is None or not len(course) or not all(map(math.isnan, course.column("mfu"))):
        return None
    peak = planned_peak(gpu, slurm, shape.precision)
    if peak is None:
        return None
    against = f"of the {peak.tflops:g} TFLOP/s that {peak.source} in {shape.precision}"
    told = course.column("model_tflops")
    if any(one >= 1 for one in told):
        return Utilisation(_percent(iter(told), peak.tflops), f"the log's model TFLOP/s {against}")
    ranks = _ranks(course, slurm)
    computed = _percent(_model_tflops(course, shape, options["seq_length"], ranks), peak.tflops)
    if all(map(math.isnan, computed)):
        return None
    least, most = min(ranks), max(ranks)
    gpus = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return Utilisation(computed, f"batch, seconds and the run file's model on {gpus} GPUs, {against}")


def _ranks(course: Course, slurm: SlurmTable) -> list[int]:
    """Return the ranks of each line, by its start; the run file's if the log does not say.

    A start names its allocated nodes, including spares.
    """
    found = []
    for ranks, nodes in zip(course.column("ranks"), course.column("nodes"), strict=True):
        trained_on = max(1, int(nodes) - slurm.spare) if math.isfinite(nodes) else slurm.nodes
        counted = slurm.gpus_per_node * trained_on
        found.append(int(ranks) if math.isfinite(ranks) else counted)
    return found


def _model_tflops(course: Course, shape: ModelShape, sequence_length: int, ranks: Sequence[int]) -> Iterator[float]:
    for batch, seconds, on in zip(course.column("batch"), course.column("seconds"), ranks, strict=True):
        is_told = math.isfinite(batch) and math.isfinite(seconds) and seconds > 0
        # Curves' numbers are floats; a batch is a whole one.
        step = (int(batch), sequence_length, seconds, on, MODEL_PASSES) if is_told else None
        yield tflops_per_gpu(shape, *step) if step is not None else math.nan


def _percent(model_tflops: Iterator[float], peak_tflops: float) -> array[float]:
    return array("d", (100 * one / peak_tflops for one in model_tflops))
