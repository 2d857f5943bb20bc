"""Does the loss still move as a training's does, and not upward?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.robust import middle, quantile, spread
from opsctl.monitoring.series import as_it_stands, finite, span_words
from opsctl.monitoring.snapshot import Part, Snapshot
from trainer.formats.logs.training_line import TrainingLine

CHECK = "loss_stuck"
HELP = """Does the loss still move as a training's does, and not upward?

2: it is the same number in the newest 12 lines of the log. 1: from line to line it moves by less than a twentieth of
what it did; or the newest 60 lines lie 4 % above what it had reached before. That it falls slowly is no finding:
late in a training it does.
"""
#: Newest lines that say the very same.
SAME = 12
#: Newest lines whose steps are compared with those before, how many of those it takes, and how small they must be.
STEPS, STEPS_BEFORE, STILL = 40, 150, 0.05
#: Newest lines that are compared with stretches of as many before; by how much they must be above, in shares of the
#: loss and in deviations of a stretch's median.
STRETCH, ABOVE, DEVIATIONS = 60, 0.04, 6.0
#: Of the newest stretch three quarters are above.
_MOSTLY = 0.25


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """At most one finding: the same number, no movement, or a plateau above what was reached."""
    if snapshot.is_finished:
        return []
    lines = [one for one in as_it_stands(snapshot.series) if finite(one.loss) is not None]
    values = [one.loss or 0.0 for one in lines]
    if len(values) >= SAME and len(set(values[-SAME:])) == 1:
        same = next((n for n, value in enumerate(reversed(values)) if value != values[-1]), len(values))
        text = f"the loss is {values[-1]:.6g} in each of the newest {same} lines of the log"
        todo = "opsctl logs: are data read and weights changed? opsctl kill-switch trigger --reason 'loss is stuck'"
        evidence = (f"lm loss {values[-1]:.6E} in all {span_words(lines[-same:])}",)
        return [Finding(CHECK, Severity.CRITICAL, text, alert=settings.team, evidence=evidence, todo=todo)]
    return _still(lines, values) or _above(lines, values)


def _still(lines: Sequence[TrainingLine], values: Sequence[float]) -> list[Finding]:
    moves = [abs(later - earlier) for earlier, later in pairwise(values)]
    if len(moves) < STEPS + STEPS_BEFORE:
        return []
    now, before = middle(moves[-STEPS:]), middle(moves[:-STEPS])
    if now >= STILL * before:
        return []
    text = f"the loss hardly moves any more: by {now:.2g} from line to line, by {before:.2g} before"
    evidence = (f"median step of {span_words(lines[-STEPS:])}: {now:.2g}; before: {before:.2g}",)
    return [Finding(CHECK, Severity.WARNING, text, evidence=evidence, todo="opsctl logs: learning rate, gradient norm")]


def _above(lines: Sequence[TrainingLine], values: Sequence[float]) -> list[Finding]:
    """Stretches are counted back from the newest one."""
    starts = range(len(values) % STRETCH, len(values), STRETCH)
    stretches = [values[start : start + STRETCH] for start in starts]
    if len(stretches) < 4:
        return []
    earlier = [middle(one) for one in stretches[:-1]]
    reached = min(earlier)
    lowest = quantile(stretches[-1], _MOSTLY)
    if lowest <= (1.0 + ABOVE) * reached:
        return []
    noise = middle(spread(one) for one in stretches[:-1]) * 1.25 / STRETCH**0.5
    if lowest <= reached + DEVIATIONS * noise:
        return []
    now = middle(stretches[-1])
    begun = lines[starts[earlier.index(reached)]].iteration
    text = f"the loss is {now:.4g}, above the {reached:.4g} that it had reached: it diverges, or the data changed"
    evidence = (
        f"median of {span_words(lines[-STRETCH:])}: {now:.4g}; of as many from iteration {begun}: {reached:.4g}",
    )
    todo = "opsctl logs -f; opsctl checkpoints list; opsctl checkpoints repoint to one before it rose"
    return [Finding(CHECK, Severity.WARNING, text, evidence=evidence, todo=todo)]


DETECTOR = Detector(CHECK, find, Part.SERIES | Part.PROGRESS, HELP)
