"""Do iterations take longer than they used to, as with a slow node?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.robust import middle, spread
from opsctl.monitoring.series import finite, newest, span_words, trained_s
from opsctl.monitoring.snapshot import Part, Snapshot
from trainer.formats.logs.training_line import TrainingLine

CHECK = "speed"
HELP = """Do iterations take longer than they used to?

1: the median of the newest 20 iterations, and 10 minutes, is `[watch] slower_percent` above what the iterations before
them took, and above what their own ups and downs explain. What is compared is the time of a sample, among iterations of
about the same batch size and the same number of nodes: a ramp, evaluations and saves are no finding.
"""
#: The newest stretch: so many iterations, lines of the log and seconds at least.
ITERATIONS, LINES, SECONDS = 20, 5, 600.0
#: Stretches of earlier lines that the usual speed is taken from: so many are needed, so many newest usual ones count.
STRETCHES_LEAST, STRETCHES = 3, 40
#: A rise has to be so many times what the usual stretches differ among each other.
NOISE = 4.0
#: Iterations are compared whose batches are no smaller than this share of the present one.
_LIKE = 0.8


@dataclass(frozen=True)
class Slower:
    """What the newest stretch shows."""

    now_s: float  # of an iteration at the present batch size
    usual_s: float
    needed: float  # from which ratio on it is a finding
    lines: Sequence[TrainingLine]

    @property
    def ratio(self) -> float:
        """1.06: six per cent slower."""
        return self.now_s / self.usual_s


def compare(series: Sequence[TrainingLine], slower_percent: float) -> Slower | None:
    """The newest iterations against those before; None where there are too few to say.

    Going forward in time, a stretch counts for what is usual unless it is slow itself: what stays slow for a day does
    not become usual by that.
    """
    if not series:
        return None
    batch = series[-1].global_batch_size
    lines = [one for one in series if finite(one.seconds_per_iteration) and _is_like(one.global_batch_size, batch)]
    begin = newest(lines, ITERATIONS, LINES, SECONDS)
    if begin < 0:
        return None
    width = len(lines) - begin
    cost = [_sample_s(one) for one in lines]
    usual: list[float] = []
    # Whole stretches, counted back from the newest one.
    for start in range(begin % width, begin, width):
        value = middle(cost[start : start + width])
        if not _is_slow(usual, value, slower_percent):
            usual = [*usual, value][-STRETCHES:]
    if len(usual) < STRETCHES_LEAST:
        return None
    needed = _needed(usual, slower_percent)
    factor = batch or 1
    return Slower(middle(cost[begin:]) * factor, middle(usual) * factor, needed, lines[begin:])


def _is_slow(usual: Sequence[float], value: float, slower_percent: float) -> bool:
    if len(usual) < STRETCHES_LEAST or value <= middle(usual) * (1.0 + slower_percent / 100.0):
        return False
    return value > middle(usual) * _needed(usual, slower_percent)


def _needed(usual: Sequence[float], slower_percent: float) -> float:
    return 1.0 + max(slower_percent / 100.0, NOISE * spread(usual) / middle(usual))


def _sample_s(line: TrainingLine) -> float:
    return (line.seconds_per_iteration or 0.0) / (line.global_batch_size or 1)


def _is_like(one: int | None, present: int | None) -> bool:
    if one is None or present is None:
        return one is present
    return _LIKE * present <= one <= present / _LIKE


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A warning when the newest iterations are slower than usual."""
    if snapshot.is_finished:
        return []
    found = compare(_on_as_many_nodes(snapshot), settings.watch.slower_percent)
    if found is None or found.ratio <= found.needed:
        return []
    tflops = [one.tflops for one in found.lines if finite(one.tflops)]
    begun = snapshot.last_logged_at
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"an iteration takes {found.now_s:.4g} s, {100 * (found.ratio - 1):.1f} % more than the usual "
            f"{found.usual_s:.4g} s: a slow node?",
            since=begun - timedelta(seconds=trained_s(found.lines)) if begun else None,
            evidence=(
                f"median of {span_words(found.lines)}: {found.now_s:.4g} s; before: {found.usual_s:.4g} s",
                *([f"{middle(filter(None, tflops)):.4g} TFLOPs per GPU now"] if any(tflops) else []),
                f"more than {100 * (found.needed - 1):.1f} % is a finding here",
            ),
            todo="opsctl attempts names its nodes; leave out some at a time: opsctl submit --exclude NODES",
        )
    ]


def _on_as_many_nodes(snapshot: Snapshot) -> Sequence[TrainingLine]:
    """The iterations since the run went on on another number of nodes; all of them where it did not."""
    width, begun = 0, None
    for attempt in snapshot.attempts:
        if attempt.nodes and len(attempt.nodes) != width:
            width, begun = len(attempt.nodes), (attempt.iteration_at_start or 0) if width else None
    return snapshot.series if begun is None else [one for one in snapshot.series if one.iteration > begun]


DETECTOR = Detector(CHECK, find, Part.SERIES | Part.LOG | Part.ATTEMPTS | Part.PROGRESS, HELP)
