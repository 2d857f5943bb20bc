"""Incidents of the training's numbers: loss, gradients, skipped iterations."""

from __future__ import annotations

import math
import random

from benchmarks.desk.clockwork import Life
from benchmarks.desk.incidents.parts import Plant, finish, go_on_for, seen_after_lines, settled, until
from benchmarks.desk.shapes import DAY_S, HOUR_S
from benchmarks.desk.world import World


def loss_nan(world: World, chance: random.Random) -> Life:
    """From one iteration on it is no number."""
    if not (yield from settled(world)):
        return
    trouble = world.note("loss NaN")
    world.trainer.faults.nan_share = 1.0
    yield from seen_after_lines(world, trouble, 2)
    yield from go_on_for(world, chance, 1, 10)
    world.trainer.faults.nan_share = 0.0
    world.trainer.cancel()
    world.trainer.roll_back(0)
    finish(world, trouble)


def _spike(kind: str, length: int, height: tuple[float, float]) -> Plant:
    """Up at once, down again over `length` iterations by itself."""

    def life(world: World, chance: random.Random) -> Life:
        if not (yield from settled(world)):
            return
        trainer = world.trainer
        first, nats = trainer.iteration, chance.uniform(*height)
        trouble = world.note(kind, f"{nats:.1f} nats")
        trainer.faults.loss[trouble.kind] = lambda at: nats * max(0.0, 1 - max(0, at - first) / length)
        yield from seen_after_lines(world, trouble, 1, 3)
        yield from until(world, lambda: trainer.iteration >= first + length, 4 * DAY_S)
        del trainer.faults.loss[trouble.kind]
        finish(world, trouble)

    return life


def _rises_and_stays(
    kind: str, over: int, seen_after: int, share: tuple[float, float], hours: tuple[float, float]
) -> Plant:
    def life(world: World, chance: random.Random) -> Life:
        if not (yield from settled(world)):
            return
        trainer = world.trainer
        first, nats = trainer.iteration, chance.uniform(*share) * world.shape.loss(trainer.samples)
        trouble = world.note(kind, f"{nats:.2f} nats")
        trainer.faults.loss[trouble.kind] = lambda at: nats * min(1.0, max(0, at - first) / over)
        yield from seen_after_lines(world, trouble, 2, seen_after)
        yield from go_on_for(world, chance, *hours)
        del trainer.faults.loss[trouble.kind]
        trainer.cancel()
        trainer.roll_back(trainer.iteration - first + 50)
        finish(world, trouble)

    return life


def gradients_climb(world: World, chance: random.Random) -> Life:
    """The gradient norm grows for a day, five to ten times."""
    if not (yield from settled(world)):
        return
    first, most = world.clock.now, chance.uniform(5, 10)
    trouble = world.note("gradients climb", f"{most:.0f} times in a day")
    world.trainer.faults.norm[trouble.kind] = lambda at: most ** min(1.0, (at - first) / DAY_S)
    yield first + DAY_S * math.log(2) / math.log(most)
    yield from seen_after_lines(world, trouble, 10)
    yield max(world.clock.now, first + DAY_S) + chance.uniform(1, 8) * HOUR_S
    del world.trainer.faults.norm[trouble.kind]
    world.trainer.cancel()
    world.trainer.roll_back(300)
    finish(world, trouble)


def skipped(world: World, chance: random.Random) -> Life:
    """Every third to tenth iteration is skipped (fp16), or its loss is no number (bf16)."""
    if not (yield from settled(world)):
        return
    share, faults = chance.uniform(0.1, 0.3), world.trainer.faults
    trouble = world.note("skipped iterations", f"{100 * share:.0f} %")
    if world.shape.is_fp16:
        faults.skipped_share = share
    else:
        faults.nan_share = share
    yield from seen_after_lines(world, trouble, 10, 100)
    yield from go_on_for(world, chance, 4, 24)
    faults.skipped_share = faults.nan_share = 0.0
    world.trainer.save_and_leave()
    finish(world, trouble)


#: Kind -> its life.
NUMBERS: dict[str, Plant] = {
    "loss NaN": loss_nan,
    "spike, 30 iterations": _spike("spike, 30 iterations", 30, (1.5, 3.0)),  # 2.19 to 5.10
    "spike, 500 iterations": _spike("spike, 500 iterations", 500, (3.0, 6.0)),  # 2.8 to between 7 and 9
    "divergence": _rises_and_stays("divergence", 100, 50, (0.3, 2.0), (8, 40)),
    "stuck": _rises_and_stays("stuck", 200, 500, (0.08, 0.2), (16, 48)),
    "gradients climb": gradients_climb,
    "skipped iterations": skipped,
}
