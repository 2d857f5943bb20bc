"""Does the training get out of its GPUs what it was planned with?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.robust import middle
from opsctl.monitoring.series import finite, newest, span_words
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "throughput"
HELP = """Does each GPU give what the run was planned with?

1: the median of the newest 30 iterations is below `[watch] tflops_least`; without that, below 85 % of `[expect]
tflops`; without either it says nothing. While the batch still grows it says nothing either.
"""
#: Of `[expect] tflops`, where nobody said what is the least.
SHARE = 0.85
#: The newest stretch: so many iterations, lines of the log and seconds at least.
ITERATIONS, LINES, SECONDS = 30, 5, 600.0
#: Once below, it has to be so much above to be well again.
_STEADY = 1.01


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A warning when the newest iterations are below it."""
    watch, expect = settings.watch, settings.expect
    least = watch.tflops_least or (SHARE * expect.tflops if expect.tflops else None)
    lines = [one for one in snapshot.series if finite(one.tflops)]
    begin = newest(lines, ITERATIONS, LINES, SECONDS)
    if least is None or begin < 0 or snapshot.is_finished:
        return []
    # A window of which some is from before still says for a while what was so.
    lines, before = lines[begin:], lines[:begin][-len(lines[begin:]) :]
    batches = {one.global_batch_size for one in lines}
    full = settings.global_batch_size
    if len(batches) > 1 or (full is not None and batches != {full} and batches != {None}):
        return []
    now = middle(one.tflops or 0.0 for one in lines)
    was_below = bool(before) and middle(one.tflops or 0.0 for one in before) < least
    if now >= (least * _STEADY if was_below else least):
        return []
    source = "[watch] tflops_least" if watch.tflops_least else f"{100 * SHARE:.0f} % of [expect] tflops"
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"each GPU gives {now:.4g} TFLOPs, less than {least:.4g} ({source})",
            evidence=(f"median of {span_words(lines)}: {now:.4g} TFLOPs per GPU",),
            todo="opsctl plan says what was reckoned with; opsctl attempts names the nodes",
        )
    ]


DETECTOR = Detector(CHECK, find, Part.SERIES | Part.PROGRESS, HELP)
