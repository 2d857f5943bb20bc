"""Did the loss jump, and did it come back?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.excursions import Excursion, excursions
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.robust import middle
from opsctl.monitoring.series import TOLD_FOR_S, as_it_stands, losses, trained_s
from opsctl.monitoring.snapshot import Part, Snapshot
from trainer.formats.logs.training_line import TrainingLine

CHECK = "loss_spike"
HELP = """Did the loss jump, and did it come back?

1: it was above what the 100 lines before say, by 8 of their standard deviations and 10 %, twice among some lines, or
once by half. One that came back is told for six more hours of training. 2: it has not come back for 100 iterations and
is still half as high.
"""
#: From so many iterations on, at more than this share of its height, it does not come back by itself.
LASTING, HIGH = 100, 0.5
_NEWEST = 10


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A finding for each spike, under the iteration at which it began."""
    series = as_it_stands(snapshot.series)
    told: dict[str, Finding] = {}
    for one in excursions(series):
        if one.is_over and trained_s(series[one.last + 1 :]) > TOLD_FOR_S:
            continue
        # The same again after a restart is the same spike, as it is now.
        finding = _finding(series, one)
        told[finding.key] = finding
    return list(told.values())


def _finding(series: tuple[TrainingLine, ...], one: Excursion) -> Finding:
    first, last = series[one.first].iteration, series[one.last].iteration
    text = f"the loss jumped from {one.usual:.4g} to {one.peak:.4g} at iteration {first}"
    severity = Severity.WARNING
    if one.is_over:
        text += f" and came back after {max(1, last - first + 1)} iterations"
        todo = "opsctl logs; opsctl checkpoints list: those before and after are worth keeping"
    else:
        now = middle(losses(series[one.first :])[-_NEWEST:])
        height = (now - one.usual) / (one.peak - one.usual)
        text += f" and is at {now:.4g} after {max(1, series[-1].iteration - first + 1)} iterations"
        todo = "opsctl logs -f; if it stays: opsctl kill-switch trigger, then opsctl checkpoints repoint"
        if series[-1].iteration - first >= LASTING and height > HIGH:
            severity = Severity.CRITICAL
    evidence = (f"lm loss {one.usual:.4g} before iteration {first}, {one.peak:.4g} at most up to iteration {last}",)
    return Finding(CHECK, severity, text, subject=f"iteration {first}", evidence=evidence, todo=todo)


DETECTOR = Detector(CHECK, find, Part.SERIES, HELP)
