"""Incidents of the queue and of nodes: no one queued, held, waiting, too few of anything."""

from __future__ import annotations

import random

from benchmarks.desk.clockwork import Life
from benchmarks.desk.incidents.parts import Plant, at_once, finish, go_on_for, is_settled, settled, until
from benchmarks.desk.shapes import DAY_S, HOUR_S
from benchmarks.desk.world import World
from opsctl.slurm.states import Reason


def nobody_queued(world: World, chance: random.Random) -> Life:
    """The last array has ended and no one has noticed."""
    trouble = at_once(world, "none queued")
    world.cron.refills = False
    world.queue.cancel_pending()
    world.trainer.cancel()
    yield from go_on_for(world, chance, 6, 60)
    finish(world, trouble)
    world.queue.submit()
    world.cron.refills = True


def all_held(world: World, chance: random.Random) -> Life:
    """A user, or Slurm after a failed launch, holds everything, and nothing runs."""
    trouble = at_once(world, "all held")
    world.trainer.cancel()
    for array in world.queue.waiting:
        array.is_held = True
    yield from go_on_for(world, chance, 3, 30)
    for array in world.queue.waiting:
        array.is_held = False
    finish(world, trouble)


def _stuck(kind: str, reason: Reason) -> Plant:
    def life(world: World, chance: random.Random) -> Life:
        trouble = at_once(world, kind)
        world.trainer.cancel()
        for array in world.queue.waiting[:1]:
            array.stuck = str(reason)
        yield from go_on_for(world, chance, 3, 40)
        finish(world, trouble)
        world.queue.cancel_pending()
        world.queue.submit()

    return life


def long_wait(world: World, chance: random.Random) -> Life:
    """The next task waits longer than any before it."""
    queue = world.queue
    if world.shape.is_exclusive or not (
        yield from until(world, lambda: queue.task is None and queue.wait_s is not None, 4 * DAY_S)
    ):
        return
    most_s = max(24 * HOUR_S, 1.5 * max(queue.waits_s, default=0.0))
    queue.wait_s = most_s + chance.uniform(6, 40) * HOUR_S
    trouble = world.note("long wait", f"{queue.wait_s / HOUR_S:.0f} h")
    if (yield from until(world, lambda: queue.waited_s >= most_s, 14 * DAY_S)):
        trouble.seen_from = world.clock.now
    yield from until(world, lambda: queue.task is not None, 14 * DAY_S)
    finish(world, trouble)


def must_run_waits(world: World, chance: random.Random) -> Life:
    """The nodes that are set aside are another user's for hours."""
    if not world.shape.is_exclusive or not (yield from settled(world)):
        return
    queue = world.queue
    assert queue.task is not None
    world.trainer.fail(queue.task, queue.task.nodes[0])
    queue.wait_s = chance.uniform(4, 40) * HOUR_S
    trouble = world.note("must run, waits")
    trouble.seen_from = world.clock.now + HOUR_S
    yield from until(world, lambda: queue.task is not None, 4 * DAY_S)
    finish(world, trouble)


def few_arrays(world: World, chance: random.Random) -> Life:
    """Arrays behind the live one are gone and no one submits others."""
    if not (yield from until(world, lambda: world.queue.task is not None, 4 * DAY_S)):
        return
    trouble = world.note("few arrays")
    world.cron.refills = False
    live = world.queue.task.array if world.queue.task else None
    world.queue.arrays = [array for array in world.queue.arrays if array is live]
    trouble.seen_from = world.clock.now + 2 * HOUR_S
    yield from go_on_for(world, chance, 6, 40)
    world.cron.refills = True
    finish(world, trouble)


def node_drains(world: World, chance: random.Random) -> Life:
    """An administrator, or a health check, drains a node of the running task."""

    def has_time() -> bool:
        task = world.queue.task
        return task is not None and is_settled(world) and task.ends_at > world.clock.now + 5 * HOUR_S

    if not (yield from until(world, has_time, 4 * DAY_S)):
        return
    task = world.queue.task
    assert task is not None
    trouble, node = at_once(world, "node drains"), chance.choice(task.nodes)
    world.queue.out_of_service[node] = "HC: ECC errors"
    end = world.clock.now + chance.uniform(4, 40) * HOUR_S
    yield from until(world, lambda: world.clock.now >= end or world.queue.task is not task, 4 * DAY_S)
    world.queue.out_of_service.pop(node, None)
    finish(world, trouble)


def few_nodes(world: World, chance: random.Random) -> Life:
    """So many nodes are out of service that the next task could not start."""
    queue, shape = world.queue, world.shape
    trouble = at_once(world, "few nodes")
    lost = len(queue.names) - shape.nodes + chance.randint(1, 4)
    bad = chance.sample([name for name in queue.names if name not in queue.out_of_service], lost)
    queue.out_of_service |= dict.fromkeys(bad, "Not responding")
    yield from go_on_for(world, chance, 4, 30)
    for name in bad:
        queue.out_of_service.pop(name, None)
    finish(world, trouble)


def kill_switch_left(world: World, chance: random.Random) -> Life:
    """A user triggers it and goes home."""
    if world.trainer.kill_switch_at is not None:
        return
    trouble = at_once(world, "kill switch left")
    world.trainer.kill_switch_at = world.clock.now
    yield from go_on_for(world, chance, 6, 48)
    world.trainer.kill_switch_at = None
    if not world.queue.arrays:
        world.queue.submit()
    finish(world, trouble)


#: Kind -> its life.
QUEUED: dict[str, Plant] = {
    "none queued": nobody_queued,
    "all held": all_held,
    "dependency lost": _stuck("dependency lost", Reason.DEPENDENCY_NEVER_SATISFIED),
    "bad constraints": _stuck("bad constraints", Reason.BAD_CONSTRAINTS),
    "long wait": long_wait,
    "must run, waits": must_run_waits,
    "few arrays": few_arrays,
    "node drains": node_drains,
    "few nodes": few_nodes,
    "kill switch left": kill_switch_left,
}
