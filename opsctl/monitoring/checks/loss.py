"""Checks of the loss, the gradient norm and skipped iterations in the newest lines of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from opsctl.monitoring.check import Settings, check
from opsctl.monitoring.finding import Finding, Severity, critical, finding, warning
from opsctl.monitoring.series import (
    REPORTED_FOR_S,
    Excursion,
    as_it_stands,
    excursions,
    finite,
    losses,
    middle,
    newest,
    quantile,
    span_words,
    spread,
    steps,
    trained_s,
)
from opsctl.monitoring.snapshot import Part, Snapshot
from trainer.formats.logs.guard_lines import SKIPPED, GuardLine, NotRolledBack, RolledBack, RunAgain, Unusual
from trainer.formats.logs.training_line import TrainingLine

#: loss_nan: newest lines in a row without a finite loss; one may be a step that was skipped.
_NAN_LINES = 2
#: loss_spike: after so many iterations, at more than this share of its height, the loss does not come back by itself.
_LASTING, _HIGH = 100, 0.5
#: loss_spike: newest lines whose median is the present loss.
_NOW_LINES = 10
#: spike_guard: iterations that a finding names.
_NAMED = 5
#: loss_stuck: newest lines with the very same loss.
_SAME = 12
#: loss_stuck: newest lines whose steps are compared with those before, how many of those it takes, how small they are.
_STEPS, _STEPS_BEFORE, _STILL = 40, 150, 0.05
#: loss_stuck: newest lines that are compared with stretches of as many before; by how much three quarters of them must
#: be above, in shares of the loss and in deviations of a stretch's median.
_STRETCH, _ABOVE, _ABOVE_DEVIATIONS = 60, 0.04, 6.0
#: gradients: newest lines, how many older ones it takes, by which factor and how many deviations their median is above.
#: Twice the usual must be reported while it is twice: less the usual drift in a day, a sixth, and what the newest
#: lines, taken together, lag behind a climb.
_GRADIENTS, _GRADIENTS_BEFORE, _FACTOR, _DEVIATIONS = 30, 100, 1.6, 4.0
#: skipped: iterations that the share is taken of, how many of them it takes at least, and the training's first ones,
#: in which an fp16 training finds its loss scale by skipping.
_ITERATIONS, _LEAST, _BEGINNING = 100, 3, 100


@check(Part.SERIES)
def loss_nan(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check that the loss is a number.

    2: the newest two lines of the log, or more, have no finite loss. `opsctl watch skipped` counts a single one.
    """
    row: list[TrainingLine] = []
    for line in reversed(snapshot.series):
        if line.is_left_out or (line.loss is None and line.nan_iterations is None):  # of a step without a logged loss
            continue
        if finite(line.loss) is not None:
            break
        row.insert(0, line)
    # A log whose lines never have a loss shows nothing.
    has_losses = any(line.nan_iterations or line.loss is not None for line in snapshot.series)
    if len(row) >= _NAN_LINES and has_losses:
        yield critical(
            f"the loss is not a number since iteration {row[0].iteration}, {len(row)} lines of the log",
            alert=settings.team,
            evidence=(f"no finite lm loss in {span_words(row)}",),
            todo="opsctl kill-switch trigger --reason 'loss is NaN'; then opsctl checkpoints repoint to one before it",
        )


@check(Part.SERIES)
def loss_spike(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """Check whether the loss jumped, and whether it returned.

    1: the loss exceeded the 100 lines before by 8 of their standard deviations and 10 %, twice within some lines, or
    once by half. A loss that returned is reported for six more hours of training. 2: it has not returned for 100
    iterations and is still half as high.
    """
    series = as_it_stands(snapshot.series)
    recent = [
        one for one in excursions(series) if not one.is_over or trained_s(series[one.last + 1 :]) <= REPORTED_FOR_S
    ]
    # The same again after a restart is the same spike, as it is now.
    return list({found.key: found for found in (_spike(series, one) for one in recent)}.values())


def _spike(series: tuple[TrainingLine, ...], one: Excursion) -> Finding:
    first, last = series[one.first].iteration, series[one.last].iteration
    text = f"the loss jumped from {one.usual:.4g} to {one.peak:.4g} at iteration {first}"
    severity = Severity.WARNING
    if one.is_over:
        text += f" and came back after {max(1, last - first + 1)} iterations"
        todo = "opsctl logs; opsctl checkpoints list: those before and after are worth keeping"
    else:
        now = middle(losses(series[one.first :])[-_NOW_LINES:])
        height = (now - one.usual) / (one.peak - one.usual)
        text += f" and is at {now:.4g} after {max(1, series[-1].iteration - first + 1)} iterations"
        todo = "opsctl logs -f; if it stays: opsctl kill-switch trigger, then opsctl checkpoints repoint"
        if series[-1].iteration - first >= _LASTING and height > _HIGH:
            severity = Severity.CRITICAL
    evidence = (f"lm loss {one.usual:.4g} before iteration {first}, {one.peak:.4g} at most up to iteration {last}",)
    return finding(severity, text, f"iteration {first}", evidence=evidence, todo=todo)


@check(Part.SERIES | Part.PROGRESS)
def spike_guard(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check whether the trainer's spike guard has acted.

    1: updates were skipped, the training rolled back to a checkpoint, or no checkpoint was left for a rollback. 2: a
    step that ran again on the same data gave another loss or gradient norm; host and rank are named as far as they are
    known. Each is reported for six more hours of training.
    """
    if snapshot.is_finished:
        return
    series = as_it_stands(snapshot.series)

    def is_new(line: GuardLine) -> bool:
        return trained_s([one for one in series if one.iteration > line.iteration]) <= REPORTED_FOR_S

    recent = [one for one in snapshot.guarded if is_new(one)]
    suspected = [one for one in recent if isinstance(one, RunAgain) and one.is_hardware]
    if suspected:
        last = suspected[-1]
        yield critical(
            f"iteration {last.iteration}, run again on the same data, came out differently: hardware? {last.why}",
            "hardware",
            alert=settings.team,
            evidence=(f"iteration {one.iteration}: {one.why}" for one in suspected[-_NAMED:]),
            todo="opsctl probe --nodes 1 --nodelist NODE tests it; opsctl exclude add NODE --why TEXT",
        )
    # The same again after a restart is the same, as it is now.
    rollbacks = {one.iteration: one for one in recent if isinstance(one, RolledBack | NotRolledBack)}
    yield from map(_rollback, rollbacks.values())
    skips = [one for one in recent if isinstance(one, Unusual) and one.done == SKIPPED]
    if skips:
        yield warning(
            f"the spike guard made no update at {_named(list(dict.fromkeys(one.iteration for one in skips)))}",
            "skipped",
            evidence=(
                f"iteration {one.iteration}: loss {one.loss:.4g}, gradient norm {one.grad_norm:.4g}"
                for one in skips[-_NAMED:]
            ),
            todo="opsctl logs -f; if it repeats, lower the learning rate, then opsctl revise",
        )


def _rollback(line: RolledBack | NotRolledBack) -> Finding:
    subject = f"iteration {line.iteration}"
    if isinstance(line, NotRolledBack):
        text = f"the spike guard wanted to go back at iteration {line.iteration} and could not: {line.why}"
        todo = "opsctl checkpoints list shows earlier ones; opsctl logs -f"
        return warning(text, subject, todo=todo)
    return warning(
        f"the spike guard went back from iteration {line.iteration} to {line.to} and leaves out iterations "
        f"{line.first} to {line.last}",
        subject,
        evidence=(line.why,),
        todo=f"see if it gets past iteration {line.last}: opsctl logs -f; see the data read there: opsctl data inspect",
    )


def _named(iterations: list[int]) -> str:
    if len(iterations) == 1:
        return f"iteration {iterations[0]}"
    more = f" and {len(iterations) - _NAMED} before" if len(iterations) > _NAMED else ""
    return f"{len(iterations)} iterations: {', '.join(map(str, iterations[-_NAMED:]))}{more}"


@check(Part.SERIES | Part.PROGRESS)
def loss_stuck(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """Check that the loss changes and does not rise.

    2: it is the same number in the newest 12 lines of the log. 1: it changes from line to line by less than a twentieth
    of the usual change; or the newest 60 lines are 4 % above the lowest level before. A slow fall late in a training is
    not a finding.
    """
    if snapshot.is_finished:
        return []
    lines = [one for one in as_it_stands(snapshot.series) if finite(one.loss) is not None]
    values = [one.loss or 0.0 for one in lines]
    if len(values) >= _SAME and len(set(values[-_SAME:])) == 1:
        same = next((n for n, value in enumerate(reversed(values)) if value != values[-1]), len(values))
        text = f"the loss is {values[-1]:.6g} in each of the newest {same} lines of the log"
        todo = "opsctl logs: are data read and weights changed? opsctl kill-switch trigger --reason 'loss is stuck'"
        evidence = (f"lm loss {values[-1]:.6E} in all {span_words(lines[-same:])}",)
        return [critical(text, alert=settings.team, evidence=evidence, todo=todo)]
    return _still(lines, values) or _above(lines, values)


def _still(lines: Sequence[TrainingLine], values: Sequence[float]) -> list[Finding]:
    moves = [abs(later - earlier) for earlier, later in pairwise(values)]
    if len(moves) < _STEPS + _STEPS_BEFORE:
        return []
    now, before = middle(moves[-_STEPS:]), middle(moves[:-_STEPS])
    if now >= _STILL * before:
        return []
    text = f"the loss hardly moves any more: by {now:.2g} from line to line, by {before:.2g} before"
    evidence = (f"median step of {span_words(lines[-_STEPS:])}: {now:.2g}; before: {before:.2g}",)
    return [warning(text, evidence=evidence, todo="opsctl logs: learning rate, gradient norm")]


def _above(lines: Sequence[TrainingLine], values: Sequence[float]) -> list[Finding]:
    """Compare the newest stretch with the earlier ones, counted back from it."""
    starts = range(len(values) % _STRETCH, len(values), _STRETCH)
    stretches = [values[start : start + _STRETCH] for start in starts]
    if len(stretches) < 4:
        return []
    earlier = [middle(one) for one in stretches[:-1]]
    reached, lowest = min(earlier), quantile(stretches[-1], 0.25)
    noise = middle(spread(one) for one in stretches[:-1]) * 1.25 / _STRETCH**0.5
    if lowest <= max((1.0 + _ABOVE) * reached, reached + _ABOVE_DEVIATIONS * noise):
        return []
    now = middle(stretches[-1])
    begun = lines[starts[earlier.index(reached)]].iteration
    text = f"the loss is {now:.4g}, above the {reached:.4g} that it had reached: it diverges, or the data changed"
    evidence = (
        f"median of {span_words(lines[-_STRETCH:])}: {now:.4g}; of as many from iteration {begun}: {reached:.4g}",
    )
    todo = "opsctl logs -f; opsctl checkpoints list; opsctl checkpoints repoint to one before it rose"
    return [warning(text, evidence=evidence, todo=todo)]


@check(Part.SERIES | Part.PROGRESS)
def gradients(snapshot: Snapshot, _settings: Settings) -> Iterator[Finding]:
    """Check whether the gradient norm rises.

    1: the median of the newest 30 lines of the log is above 1.6 times that of the older half of the newest thousand
    lines, and above its usual variation.
    """
    lines = [one for one in as_it_stands(snapshot.series) if finite(one.grad_norm) is not None]
    if len(lines) < _GRADIENTS + _GRADIENTS_BEFORE or snapshot.is_finished:
        return
    values = [one.grad_norm or 0.0 for one in lines]
    before = values[: max(_GRADIENTS_BEFORE, (len(values) - _GRADIENTS) // 2)]
    usual, now = middle(before), middle(values[-_GRADIENTS:])
    if now > max(_FACTOR * usual, usual + _DEVIATIONS * spread(before)):
        than = f"{now / usual:.1f} times the usual {usual:.3g}" if usual else "and was 0"
        yield warning(
            f"the gradient norm is {now:.3g}, {than}",
            evidence=(
                f"median of {span_words(lines[-_GRADIENTS:])}: {now:.3g}",
                f"median of {span_words(lines[: len(before)])}: {usual:.3g}",
            ),
            todo="opsctl logs -f; opsctl checkpoints list: keep one from before it climbed",
        )


@check(Part.SERIES | Part.PROGRESS)
def skipped(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Check how many recent iterations were skipped.

    1: more than `[watch] skipped_percent` of the newest 100, and at least three. Not counted are the first 100
    iterations of the training, in which fp16 searches its loss scale, and iterations skipped on request.
    """
    lines = [one for one in snapshot.series if one.iteration > _BEGINNING]
    begin = newest(lines, _ITERATIONS, 1)
    if begin < 0 or snapshot.is_finished:
        return
    lines, most = lines[begin:], settings.watch.skipped_percent
    skips = sum((one.skipped_iterations or 0) - (one.skipped_on_request or 0) for one in lines)
    nan = sum(one.nan_iterations or 0 for one in lines)
    trained, bad = sum(steps(lines)) - sum(one.skipped_on_request or 0 for one in lines), skips + nan
    if bad >= _LEAST and 100.0 * bad > most * trained:
        yield warning(
            f"{bad} of the newest {trained} iterations were skipped or not a number, {100 * bad / trained:.0f} %",
            evidence=(f"{span_words(lines)}: {skips} skipped, {nan} nan; at most {most:g} %",),
            todo="opsctl logs shows loss scale and gradient norm; lower the learning rate, then opsctl revise",
        )
