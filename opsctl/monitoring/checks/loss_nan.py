"""Is the loss a number?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.series import finite, span_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "loss_nan"
HELP = """Is the loss a number?

2: the newest two lines of the log, or more, have no finite loss. One alone is counted by `opsctl watch skipped`.
"""
#: Newest lines in a row without a finite loss: one may be a step that was skipped.
LINES = 2


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A critical finding about a training that trains on what is no number."""
    row = []
    for line in reversed(snapshot.series):
        if line.is_left_out:
            continue
        if finite(line.loss) is not None:
            break
        row.append(line)
    row.reverse()
    if len(row) < LINES:
        return []
    # A log whose lines never say a loss says nothing.
    said = len(row) < len(snapshot.series) or any(line.nan_iterations or line.loss is not None for line in row)
    if not said:
        return []
    return [
        Finding(
            CHECK,
            Severity.CRITICAL,
            f"the loss is not a number since iteration {row[0].iteration}, {len(row)} lines of the log",
            alert=settings.team,
            evidence=(f"no finite lm loss in {span_words(row)}",),
            todo="opsctl kill-switch trigger --reason 'loss is NaN'; then opsctl checkpoints repoint to one before it",
        )
    ]


DETECTOR = Detector(CHECK, find, Part.SERIES, HELP)
