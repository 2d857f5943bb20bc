"""Stretches of the newest iterations, as the checks of loss and speed compare them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from trainer.formats.training_line import TrainingLine


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
