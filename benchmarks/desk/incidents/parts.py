"""The parts of an incident's life: wait for what it needs, begin, become visible, end."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator

from benchmarks.desk.clockwork import Life
from benchmarks.desk.kinds import Trouble
from benchmarks.desk.shapes import DAY_S, HOUR_S
from benchmarks.desk.world import World

#: An incident's life in a world, by its own chances.
Plant = Callable[[World, random.Random], Life]
#: How often an incident's own conditions are looked at.
LOOK_S = 300.0
#: Log lines since a start, so that what is usual can be known.
SETTLED = 60


def until(world: World, condition: Callable[[], bool], within_s: float) -> Generator[float, None, bool]:
    """Wait for it; whether it came true in time."""
    end = world.clock.now + within_s
    while not condition():
        if world.clock.now >= end:
            return False
        yield world.clock.now + LOOK_S
    return True


def is_settled(world: World) -> bool:
    """Return whether enough has been logged since the last start."""
    return world.trainer.is_training and world.trainer.since_start >= SETTLED


def settled(world: World) -> Generator[float, None, bool]:
    """Wait until then; whether it came in time."""
    return (yield from until(world, lambda: is_settled(world), 4 * DAY_S))


def finish(world: World, trouble: Trouble) -> None:
    """A user has fixed it."""
    trouble.ends_at = world.clock.now


def seen_after_lines(world: World, trouble: Trouble, lines: int, iterations: int = 0) -> Generator[float, None, bool]:
    """Wait until so many log lines, and iterations, have come since now."""
    trainer = world.trainer
    first = trainer.settled
    enough = first + max(lines, math.ceil(iterations / world.shape.log_interval))
    is_there = yield from until(world, lambda: trainer.settled >= enough, 4 * DAY_S)
    if is_there:
        trouble.seen_from = trainer.line_at
    return is_there


def go_on_for(world: World, chance: random.Random, least_h: float, most_h: float) -> Life:
    """Until a user comes, so many hours later."""
    yield world.clock.now + chance.uniform(least_h, most_h) * HOUR_S


def at_once(world: World, kind: str, words: str = "") -> Trouble:
    """Trouble that begins now and can be seen now."""
    trouble = world.note(kind, words)
    trouble.seen_from = world.clock.now
    return trouble
