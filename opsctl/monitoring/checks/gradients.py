"""Does the gradient norm climb, as it does before a training diverges?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.robust import middle, spread
from opsctl.monitoring.series import as_it_stands, finite, span_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "gradients"
HELP = """Does the gradient norm climb?

1: the median of the newest 30 lines of the log is above 1.6 times what the older half of the log's newest thousand
says, and above its own ups and downs.
"""
#: Newest lines, how many older ones it takes, and by which factor and how many deviations their middle is above. Twice
#: the usual must be told while it is twice: less what the usual itself drifts in a day, a sixth, and what the newest
#: lines, taken together, lag behind a climb.
NEWEST, BEFORE, FACTOR, DEVIATIONS = 30, 100, 1.6, 4.0


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning when the newest, taken together, are far above the usual."""
    lines = [one for one in as_it_stands(snapshot.series) if finite(one.grad_norm) is not None]
    if len(lines) < NEWEST + BEFORE or snapshot.is_finished:
        return []
    values = [one.grad_norm or 0.0 for one in lines]
    before = values[: max(BEFORE, (len(values) - NEWEST) // 2)]
    usual = middle(before)
    needed = max(FACTOR * usual, usual + DEVIATIONS * spread(before))
    now = middle(values[-NEWEST:])
    if now <= needed:
        return []
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"the gradient norm is {now:.3g}, {now / usual:.1f} times the usual {usual:.3g}"
            if usual
            else f"the gradient norm is {now:.3g}, and was 0",
            evidence=(
                f"median of {span_words(lines[-NEWEST:])}: {now:.3g}",
                f"median of {span_words(lines[: len(before)])}: {usual:.3g}",
            ),
            todo="opsctl logs -f; opsctl checkpoints list: keep one from before it climbed",
        )
    ]


DETECTOR = Detector(CHECK, find, Part.SERIES | Part.PROGRESS, HELP)
