"""How many of the newest iterations were skipped, or were not a number?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.series import newest, span_words, steps
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "skipped"
HELP = """How many of the newest iterations were skipped, or were not a number?

1: more than `[watch] skipped_percent` of the newest 100, and three at least. The training's first 100 iterations, in
which fp16 looks for its loss scale, are left out, and so is what somebody asked to be skipped.
"""
#: Iterations that the share is taken of; and how many of them it takes at least.
ITERATIONS, LEAST = 100, 3
#: The training's first ones, in which an fp16 training finds its loss scale by skipping.
BEGINNING = 100


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A warning about a share above the limit."""
    lines = [one for one in snapshot.series if one.iteration > BEGINNING]
    begin = newest(lines, ITERATIONS, 1)
    if begin < 0 or snapshot.is_finished:
        return []
    lines = lines[begin:]
    skipped = sum((one.skipped_iterations or 0) - (one.skipped_on_request or 0) for one in lines)
    nan = sum(one.nan_iterations or 0 for one in lines)
    trained, bad = sum(steps(lines)) - sum(one.skipped_on_request or 0 for one in lines), skipped + nan
    if bad < LEAST or 100.0 * bad <= settings.watch.skipped_percent * trained:
        return []
    return [
        Finding(
            CHECK,
            Severity.WARNING,
            f"{bad} of the newest {trained} iterations were skipped or not a number, {100 * bad / trained:.0f} %",
            evidence=(
                f"{span_words(lines)}: {skipped} skipped, {nan} nan; at most {settings.watch.skipped_percent:g} %",
            ),
            todo="opsctl logs shows loss scale and gradient norm; a lower learning rate, or other data",
        )
    ]


DETECTOR = Detector(CHECK, find, Part.SERIES | Part.PROGRESS, HELP)
