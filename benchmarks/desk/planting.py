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


def plant_all(world: World) -> None:
    """Let incidents come: one at a time of those that touch the training, and one at a time of the others."""
    for name, plants in (("training", {**QUEUED, **RUNNING, **NUMBERS}), ("around", AROUND)):
        world.clock.start(_one_after_another(world, world.chance(f"incidents/{name}"), plants))


def _one_after_another(world: World, chance: random.Random, plants: Mapping[str, Plant]) -> Life:
    yield chance.uniform(3, 5) * DAY_S
    while True:
        order = list(plants)
        chance.shuffle(order)
        for name in order:
            yield from plants[name](world, chance)
            yield world.clock.now + chance.uniform(1.0, 3.5) * DAY_S
