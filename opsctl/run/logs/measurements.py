"""Measure durations and progress from the end of a run's training log, whatever its size."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, cast

import msgspec

from opsctl.core.files.trusted import opened_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs import lines, titan_lines
from opsctl.run.logs.line_text import last_lines, lines_backwards
from opsctl.run.logs.lines import parse_line, parse_lines, read_alike
from opsctl.run.logs.reader import LogReader
from opsctl.run.logs.records import Alert, Measured, Pulse, Record, SaveEnded, reports_loss
from trainer.formats.logs import guard_lines, log_lines, training_line
from trainer.formats.logs.guard_lines import GuardLine, Left
from trainer.formats.logs.log_lines import (
    BACKGROUND_TIMER,
    SAVE_TIMER,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointSaving,
    Evaluation,
    FreshStart,
    Stamp,
    Timers,
)
from trainer.formats.logs.training_line import TrainingLine

#: Marks for a search from the end of the log.
_MARKS = (
    *training_line.MARKS,
    *log_lines.MARKS,
    *guard_lines.MARKS,
    *lines.ATTEMPT_MARKS,
    titan_lines.MARK,
    b"] PULSE: ",
)
#: Bytes at a log's end that are read: to measure all of it, or at most to find the newest iterations.
TAIL_BYTES, SEARCHED_BYTES = 4 << 20, 64 << 20
#: Iterations over which durations are measured.
WINDOW = 50
#: Saves and evaluations over which their duration is measured, so that a slow one does not count alone.
TYPICAL_OF = 10
#: With this many iterations since the last start, earlier ones do not count.
_ENOUGH = 3


def measured(paths: RunPaths) -> Measured:
    """Return measurements of the newest part of the run's training log; all None without a log."""
    return _measured(paths, None)


def recent(paths: RunPaths) -> Measured:
    """Return `measured` from only the newest iterations, for callers that cannot wait."""
    return _measured(paths, WINDOW + 1)


def recent_in(fd: int) -> tuple[Measured, Pulse | Alert | None]:
    """Return `recent` of an open log, and the last watchdog's line in that part."""
    records = _records(fd, WINDOW + 1)
    pulse = next((one for one in reversed(records) if isinstance(one, Pulse | Alert) and one.at is not None), None)
    return _seen_in(fd, records), pulse


class Series(NamedTuple):
    """The newest lines of iterations and of the spike guard, oldest first."""

    iterations: tuple[TrainingLine, ...] = ()
    guarded: tuple[GuardLine, ...] = ()


def recent_and_series(paths: RunPaths, iterations: int) -> tuple[Measured, Series]:
    """Return `recent` and the newest `iterations` lines of iterations, from one reading."""
    try:
        with opened_file(paths.output, paths.main_log) as fd:
            records = _records(fd, iterations)
            found = _seen_in(fd, _newest(records, WINDOW + 1))
    except OSError:
        return Measured(), Series()
    # A failed save is reported until the next one, which may be many iterations later.
    return msgspec.structs.replace(found, failed_save=_failed_save(records)), series_of(records)


def series_of(records: Iterable[Record]) -> Series:
    """Return the lines of iterations and of the spike guard among records."""
    lines = list(records)
    return Series(
        tuple(one for one in lines if isinstance(one, TrainingLine)),
        tuple(one for one in lines if isinstance(one, GuardLine)),
    )


def _measured(paths: RunPaths, iterations: int | None) -> Measured:
    try:
        with opened_file(paths.output, paths.main_log) as fd:
            return _seen_in(fd, _records(fd, iterations))
    except OSError:  # also an untrusted log, which `opsctl logs` reports: the rest of a status counts
        return Measured()


def _seen_in(fd: int, records: Sequence[Record]) -> Measured:
    found = measure(records)
    return found if found.last_iteration is None else msgspec.structs.replace(found, is_followed=_is_followed(fd))


def _newest(records: Sequence[Record], iterations: int) -> Sequence[Record]:
    """Return the end of `records` that begins with the `iterations`-th last iteration."""
    at = [number for number, record in enumerate(records) if isinstance(record, TrainingLine)]
    return records[at[-iterations] :] if len(at) >= iterations else records


def measure(records: Sequence[Record]) -> Measured:
    """Measure durations and progress from records in the log's order.

    The time of an iteration is the median since the last start, including earlier ones if there are few. The first
    iteration after a start counts only if it is the only one. The time of an evaluation is that of the trainer's
    timer, else the extra time of the following iteration over the median. The time of a save is that of a
    synchronous save, also for asynchronous saves. The newest TYPICAL_OF evaluations and saves count.
    """
    iterations = [record for record in records if isinstance(record, TrainingLine)]
    window = _window(records)
    typical_s = _median([one.seconds_per_iteration for one in window])
    last = iterations[-1] if iterations else None
    evaluations = _evaluations_s(records, typical_s)[-TYPICAL_OF:]
    saves = _saves_s(records)[-TYPICAL_OF:]
    return Measured(
        seconds_per_iteration=typical_s,
        iterations_per_line=_iterations_per_line(window),
        evaluation_seconds=_median(evaluations),
        evaluations=len(evaluations),
        longest_evaluation_seconds=max(evaluations, default=None),
        save_seconds=_median(saves),
        saves=len(saves),
        longest_save_seconds=max(saves, default=None),
        samples_per_second=_median([one.samples_per_second for one in window]),
        tflops=_median([one.tflops for one in window]),
        last_iteration=last,
        last_with_loss=next((one for one in reversed(iterations) if reports_loss(one)), None),
        stamped_after_it=_stamp_after_last_iteration(records),
        is_saving=_is_saving(records),
        failed_save=_failed_save(records),
    )


def _is_followed(fd: int) -> bool:
    """Return True if the log's last line is not about an iteration: most lines that may follow have no record."""
    return not any(isinstance(one, TrainingLine) for one in parse_lines(last_lines(fd, 1)))


def _records(fd: int, iterations: int | None = None) -> list[Record]:
    """Return the records at the log's end, in order, without an incomplete line of an iteration."""
    found: list[Record] = []
    seen, example, reader = 0, "", LogReader()
    for line in lines_backwards(fd, TAIL_BYTES if iterations is None else SEARCHED_BYTES, _MARKS):
        record = read_alike(line, example) or parse_line(line)
        if record is None or (not found and _is_being_written(record, line)) or reader.is_another_ranks(record, line):
            continue
        found.append(record)
        if isinstance(record, TrainingLine):
            seen += 1
            example = example or line
        if seen == iterations:
            break
    return [cast(Record, reader.completed(record)) for record in reversed(found)]


def _is_being_written(record: Record, line: str) -> bool:
    # torchtitan's lines, which have no total, have no mark at their end.
    is_megatrons = isinstance(record, TrainingLine) and record.total_iterations > 0
    return is_megatrons and not line.rstrip().endswith("|")


def _window(records: Sequence[Record]) -> list[TrainingLine]:
    settled: list[TrainingLine] = []  # without those that include a start's costs
    since_start = 0
    before: TrainingLine | None = None
    started = False
    for record in records:
        if _is_start(record):
            started = True
        elif isinstance(record, TrainingLine) and not record.is_left_out:
            # Without other evidence, a smaller iteration number shows a start.
            if started or (before is not None and record.iteration <= before.iteration):
                since_start = 0
            else:
                settled.append(record)
                since_start += 1
            before, started = record, False
    if not settled:
        return [before] if before else []
    return settled[-min(WINDOW, since_start if since_start >= _ENOUGH else WINDOW) :]


def _is_start(record: Record) -> bool:
    return isinstance(record, CheckpointLoaded | FreshStart) or (
        isinstance(record, Stamp) and "before the start" in record.what
    )


def _evaluations_s(records: Sequence[Record], typical_s: float | None) -> list[float]:
    timed = _timers_s(records, ("evaluation", "evaluate", "eval-time"))
    if timed or typical_s is None:
        return timed
    found: list[float] = []
    before: TrainingLine | None = None
    evaluated, saved_s = False, 0.0
    for record in records:
        if _is_start(record):
            before = None
        elif isinstance(record, Evaluation):
            evaluated = True
        elif isinstance(record, Timers):
            saved_s += sum(_timers_s([record], (SAVE_TIMER,)))
        elif isinstance(record, TrainingLine):
            if (
                evaluated
                and before is not None
                and record.seconds_per_iteration is not None
                and record.iteration > before.iteration
            ):
                extra_s = (record.seconds_per_iteration - typical_s) * (record.iteration - before.iteration) - saved_s
                # Less than a tenth of an iteration is noise: this trainer's clock stops during evaluations.
                if extra_s > 0.1 * typical_s:
                    found.append(extra_s)
            before, evaluated, saved_s = record, False, 0.0
    return found


def _timers_s(records: Sequence[Record], names: Sequence[str]) -> list[float]:
    return [
        record.milliseconds[name] / 1000
        for record in records
        if isinstance(record, Timers)
        for name in names
        if name in record.milliseconds
    ]


def _saves_s(records: Sequence[Record]) -> list[float]:
    """Return the seconds of each save, oldest first: the time that it stopped the training plus the time of writing."""
    return [
        sum(_timers_s([record], (SAVE_TIMER, BACKGROUND_TIMER)))
        for record in records
        if isinstance(record, Timers) and SAVE_TIMER in record.milliseconds
    ]


def _failed_save(records: Sequence[Record]) -> CheckpointFailed | None:
    for record in reversed(records):
        if isinstance(record, CheckpointFailed):
            return record
        if isinstance(record, CheckpointSaved) or _is_start(record):
            return None
    return None


def _is_saving(records: Sequence[Record]) -> bool:
    ends = (CheckpointSaved, CheckpointFailed, SaveEnded, TrainingLine)
    last = next((one for one in reversed(records) if isinstance(one, (CheckpointSaving, *ends))), None)
    return isinstance(last, CheckpointSaving)


def _iterations_per_line(window: Sequence[TrainingLine]) -> int:
    steps = [later.iteration - one.iteration for one, later in itertools.pairwise(window)]
    return int(_median([step for step in steps if step > 0]) or 1)


def _stamp_after_last_iteration(records: Sequence[Record]) -> datetime | None:
    """Return the time, with zone, of the first stamped line after the last iteration, which itself has none."""
    first: datetime | None = None
    for record in reversed(records):
        if isinstance(record, TrainingLine):
            return first
        if isinstance(record, Stamp | Left | Pulse | Alert) and record.at is not None and record.at.tzinfo is not None:
            first = record.at
    return None


def _median(values: Sequence[float | None]) -> float | None:
    """Return the median of the known values; `statistics` would take 2 ms to import."""
    known = sorted(value for value in values if value is not None)
    middle = len(known) // 2
    return (known[middle] + known[~middle]) / 2 if known else None


#: Silence over this many iterations, and this many seconds, triggers a check.
SILENT_ITERATIONS = 10
SILENT_LEAST_S = 600.0
#: Silence over this many iterations is a standstill, with all known pauses included: it is reported, but ends nothing.
STILL_ITERATIONS = 20
STILL_LEAST_S = 60.0
#: Additional seconds for a start, which reads terabytes of checkpoints and builds kernels.
START_MOST_S = 1800.0


def longest_silence_s(
    seconds_per_iteration: float, given_s: float | None, pauses_s: float, is_starting: bool, log_interval: int = 1
) -> float:
    """Return the longest usual silence in seconds. given_s: the run file's. pauses_s: an evaluation and a save.
    is_starting: no iteration yet. log_interval: iterations to a line.
    """
    if given_s is not None and not is_starting:
        return given_s
    iterations = max(SILENT_ITERATIONS, 3 * log_interval)
    limit_s = max(SILENT_LEAST_S, iterations * seconds_per_iteration) + pauses_s
    return max(limit_s, given_s or 0.0) + (START_MOST_S if is_starting else 0.0)


def standstill_s(
    seconds_per_iteration: float,
    given_s: float | None,
    pauses_s: float,
    is_starting: bool,
    log_interval: int,
    may_pause: bool,
) -> float:
    """Return after how many silent seconds a training stands still. may_pause: a pause of unknown length may be on."""
    longest_s = longest_silence_s(seconds_per_iteration, given_s, pauses_s, is_starting, log_interval)
    if is_starting or may_pause or given_s is not None:
        return longest_s
    iterations = max(STILL_ITERATIONS, 3 * log_interval)
    return min(longest_s, max(STILL_LEAST_S, iterations * seconds_per_iteration) + pauses_s)


def training_left_s(
    measured: Measured,
    total_samples: int | None,
    total_iterations: int | None,
    saved_samples: int | None = None,
    saved_iteration: int | None = None,
) -> float | None:
    """Return the seconds of training left, by samples if counted in them, else by iterations; None if unknown. The last
    checkpoint replaces what the log does not show.
    """
    last = measured.last_iteration
    samples = last.consumed_samples if last is not None and last.consumed_samples is not None else saved_samples
    iteration = last.iteration if last is not None else saved_iteration
    in_all = last.total_iterations if last is not None else total_iterations
    if total_samples and samples is not None and measured.samples_per_second:
        return max(0, total_samples - samples) / measured.samples_per_second
    if in_all and iteration is not None and measured.seconds_per_iteration:
        return max(0, in_all - iteration) * measured.seconds_per_iteration
    return None
