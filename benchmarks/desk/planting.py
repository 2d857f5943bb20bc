"""Letting incidents come, one after the other, so that every kind has its turn."""

from __future__ import annotations

import random
from collections.abc import Mapping

from benchmarks.desk.clockwork import Life
from benchmarks.desk.incidents.around import AROUND
from benchmarks.desk.incidents.numbers import NUMBERS
from benchmarks.desk.incidents.parts import Plant
from benchmarks.desk.incidents.queued import QUEUED
from benchmarks.desk.incidents.running import RUNNING
from benchmarks.desk.shapes import DAY_S
from benchmarks.desk.world import World

#: Days between the end of an incident and the next one of its group.
GAP_DAYS = (1.0, 3.5)


def plant_all(world: World, gap_days: tuple[float, float] = GAP_DAYS) -> None:
    """Let incidents come: one at a time of those that touch the training, and one at a time of the others."""
    for name, plants in (("training", {**QUEUED, **RUNNING, **NUMBERS}), ("around", AROUND)):
        world.clock.start(_one_after_another(world, world.chance(f"incidents/{name}"), plants, gap_days))


def _one_after_another(
    world: World, chance: random.Random, plants: Mapping[str, Plant], gap_days: tuple[float, float]
) -> Life:
    yield chance.uniform(3, 5) * DAY_S
    while True:
        order = list(plants)
        chance.shuffle(order)
        for name in order:
            yield from plants[name](world, chance)
            yield world.clock.now + chance.uniform(*gap_days) * DAY_S
