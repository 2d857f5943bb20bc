"""Stretches of the newest iterations, as the checks of loss and speed compare them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from trainer.formats.logs.training_line import TrainingLine

#: What came to pass and is over is told for so many seconds of training more, so that whoever looks hourly meets it.
TOLD_FOR_S = 6 * 3600.0


def finite(value: float | None) -> float | None:
    """The number; None for what is none, or is not finite."""
    return value if value is not None and math.isfinite(value) else None


def steps(lines: Sequence[TrainingLine]) -> list[int]:
    """How many iterations each line is about: those since the line before; 1 where nobody can say."""
    found = [1] * len(lines)
    for place in range(1, len(lines)):
        found[place] = max(1, lines[place].iteration - lines[place - 1].iteration)
    if len(found) > 1:
        found[0] = found[1]
    return found


def as_it_stands(lines: Sequence[TrainingLine]) -> tuple[TrainingLine, ...]:
    """Those of the training that the newest line goes on: without what came after a checkpoint that it went back to.

    A rollback, `--load-fallback` or a crash begins iterations again; what was logged of them before is nothing to
    compare the new ones with, which are as high as the loss was then.
    """
    kept: list[TrainingLine] = []
    for line in lines:
        while kept and kept[-1].iteration >= line.iteration:
            kept.pop()
        kept.append(line)
    return tuple(kept)


def newest(lines: Sequence[TrainingLine], iterations: int, lines_least: int, seconds_least: float = 0.0) -> int:
    """Where the newest stretch begins that is at least so long in each of the three; -1 where there is none."""
    counts = steps(lines)
    seen, seconds = 0, 0.0
    for place in range(len(lines) - 1, -1, -1):
        seen += counts[place]
        seconds += (lines[place].seconds_per_iteration or 0.0) * counts[place]
        if seen >= iterations and len(lines) - place >= lines_least and seconds >= seconds_least:
            return place
    return -1


def trained_s(lines: Sequence[TrainingLine]) -> float:
    """Seconds that these iterations took, without what was between them."""
    return sum((line.seconds_per_iteration or 0.0) * count for line, count in zip(lines, steps(lines), strict=True))


def losses(lines: Iterable[TrainingLine]) -> list[float]:
    """The finite ones."""
    return [line.loss for line in lines if line.loss is not None and math.isfinite(line.loss)]


def span_words(lines: Sequence[TrainingLine]) -> str:
    """Which iterations these are: `iterations 31000 to 31020`."""
    first, last = lines[0].iteration, lines[-1].iteration
    return f"iteration {last}" if first == last else f"iterations {first} to {last}"
