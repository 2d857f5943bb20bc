"""Training lines like BLOOM's, for the tests of what compares them: 105 s, 149 TFLOPs, batch 2048, loss near 2.19."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from trainer.formats.logs.training_line import TrainingLine

Change = Callable[[int], dict[str, Any]]


def lines(count: int, change: Change = lambda _: {}, first: int = 30_001, step: int = 1) -> tuple[TrainingLine, ...]:
    """So many lines, each `step` iterations after the one before, with the noise that such a log has.

    change: place in the series -> fields that are different there.
    """
    chance = random.Random(count)
    found = []
    for place in range(count):
        line = TrainingLine(
            iteration=first + place * step,
            total_iterations=128_728,
            seconds_per_iteration=105.0 * (1 + chance.gauss(0, 0.006)),
            global_batch_size=2048,
            loss=2.19 + chance.gauss(0, 0.013),
            grad_norm=0.14 * (1 + chance.gauss(0, 0.12)),
            skipped_iterations=0,
            nan_iterations=0,
            tflops=149.0 * (1 + chance.gauss(0, 0.006)),
        )
        found.append(msgspec.structs.replace(line, **change(place)))
    return tuple(found)


def scaled(series: Sequence[TrainingLine], since: int, **factors: float) -> tuple[TrainingLine, ...]:
    """The series with these fields times so much from the place `since` on; a negative one counts from the end."""
    place = since % len(series)
    changed = [
        msgspec.structs.replace(line, **{name: getattr(line, name) * factor for name, factor in factors.items()})
        for line in series[place:]
    ]
    return (*series[:place], *changed)
