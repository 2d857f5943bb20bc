"""What the checkpoints of a whole training write, and how much of it lies on the disk at a time. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.run.checkpoints.retention import Kept, Progress, verdicts
from opsctl.run.config.schema import RetentionTable
from trainer.recipe.save_schedule import SaveSchedule
from trainer.recipe.schedule import BatchRamp

#: Prunings that a plan goes through; of a training with more saves, one after so many saves.
_MOST_PRUNINGS = 2_000


@dataclass(frozen=True)
class Traffic:
    """All of a training's checkpoints."""

    count: int
    shortest_gap: int  # iterations between the two that are nearest to each other
    kept_most: int | None  # at once, where what stays is known


def traffic(
    schedule: SaveSchedule, iterations: int, ramp: BatchRamp, retention: RetentionTable | None, is_full: bool
) -> Traffic:
    """The checkpoints of `iterations` iterations, the last of which is saved whatever the schedule."""
    saved = list(_saved(schedule, iterations))
    regular = saved[:-1] or saved  # the last is out of turn
    gaps = (after - before for before, after in zip([0, *regular], regular, strict=False))
    kept = None if retention is None else _kept_most(saved, ramp, retention, schedule, is_full)
    return Traffic(len(saved), min(gaps), kept)


def _saved(schedule: SaveSchedule, iterations: int) -> Iterator[int]:
    due = schedule.next_after(0)
    while due is not None and due < iterations:
        yield due
        due = schedule.next_after(due)
    yield iterations


def _kept_most(
    saved: list[int], ramp: BatchRamp, retention: RetentionTable, schedule: SaveSchedule, is_full: bool
) -> int:
    """At most so many lie there right after a save, each pruning having been done before the next save."""
    samples_in_all = _samples_after(ramp, saved[-1])
    each = -(-len(saved) // _MOST_PRUNINGS)
    there: list[Kept] = []
    most = 0
    for number, iteration in enumerate(saved, 1):
        samples = _samples_after(ramp, iteration)
        there.append(Kept(iteration, samples, is_full, iteration in schedule.pinned))
        if number % each and number < len(saved):
            continue
        most = max(most, len(there) - each + 1)
        decided = verdicts(there, retention, Progress(iteration, samples_in_all))
        there = [one for one, verdict in zip(there, decided, strict=True) if not verdict.goes]
    return most


def _samples_after(ramp: BatchRamp, iterations: int) -> int:
    """Samples that so many iterations consume from the training's beginning on."""
    stage = next(one for one in reversed(ramp.stages()) if one.first_step <= iterations + 1)
    return stage.first_sample + (iterations + 1 - stage.first_step) * stage.batch_size
