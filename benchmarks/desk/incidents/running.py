"""Incidents of a training that runs: hangs, slow nodes, checkpoints that do not come."""

from __future__ import annotations

import random

from benchmarks.desk.clockwork import Life
from benchmarks.desk.incidents.parts import Plant, at_once, finish, go_on_for, seen_after_lines, settled, until
from benchmarks.desk.shapes import DAY_S, HOUR_S, MINUTE_S
from benchmarks.desk.world import World


def _hang(where: str, kind: str) -> Plant:
    def life(world: World, chance: random.Random) -> Life:
        trainer, shape = world.trainer, world.shape
        if not (yield from settled(world)):
            return
        trainer.faults.hangs.add(where)
        if where == "start" and world.queue.task is not None:
            trainer.fail(world.queue.task, world.queue.task.nodes[0])
        if not (yield from until(world, lambda: trainer.faults.hung_since is not None, 6 * DAY_S)):
            trainer.faults.hangs.discard(where)
            return
        trouble, task = world.note(kind), world.queue.task
        trouble.starts_at = trainer.faults.hung_since or world.clock.now
        trouble.seen_from = {
            "evaluation": trainer.line_at + max(15 * MINUTE_S, 2 * 1.2 * shape.eval_s),
            "iteration": trainer.line_at
            + max(15 * MINUTE_S, 12 * shape.log_interval * shape.seconds(shape.ramp.batch_at(trainer.samples))),
            "start": (task.started_at if task else 0.0) + max(30 * MINUTE_S, 2 * trainer.normal_start_s),
        }[where]
        end = world.clock.now + chance.uniform(3, 18) * HOUR_S
        yield from until(world, lambda: world.clock.now >= end or world.queue.task is not task, 2 * DAY_S)
        trainer.faults.hangs.discard(where)
        if world.queue.task is task:
            trainer.cancel()
        finish(world, trouble)

    return life


def _slower(kind: str, lines: int, factor: tuple[float, float], hours: tuple[float, float]) -> Plant:
    def life(world: World, chance: random.Random) -> Life:
        if not (yield from settled(world)):
            return
        size = chance.uniform(*factor)
        trouble = world.note(kind, f"iterations {100 * (size - 1):.0f} % longer")
        world.trainer.faults.slower[trouble.kind] = size
        yield from seen_after_lines(world, trouble, lines)
        yield from go_on_for(world, chance, *hours)
        del world.trainer.faults.slower[trouble.kind]
        world.trainer.save_and_leave()  # to start again without that node
        finish(world, trouble)

    return life


def below_plan(world: World, chance: random.Random) -> Life:
    """From a restart on all nodes are slow: a library, a clock limit, a layout."""
    if not (yield from settled(world)) or world.trainer.samples < world.shape.ramp.ramp_samples:
        return
    trouble = world.note("below plan")
    world.trainer.faults.slower[trouble.kind] = chance.uniform(1.3, 1.6)
    world.trainer.save_and_leave()
    yield from seen_after_lines(world, trouble, 50)
    yield from go_on_for(world, chance, 6, 30)
    del world.trainer.faults.slower[trouble.kind]
    world.trainer.save_and_leave()
    finish(world, trouble)


def saves_fail(world: World, chance: random.Random) -> Life:
    """Iterations go on, checkpoints do not come."""
    if not (yield from settled(world)):
        return
    trainer, shape = world.trainer, world.shape
    trouble = world.note("saves fail")
    trainer.faults.saves_fail = True
    usual_s = shape.save_interval * shape.seconds(shape.ramp.batch_at(trainer.samples))

    def is_overdue() -> bool:
        task, saved_at = world.queue.task, trainer.saved[-1].at
        return (
            trainer.is_training and task is not None and world.clock.now >= max(saved_at, task.started_at) + 2 * usual_s
        )

    if (yield from until(world, is_overdue, 4 * DAY_S)):
        trouble.seen_from = world.clock.now
    yield from go_on_for(world, chance, 3, 8)
    trainer.faults.saves_fail = False
    yield from until(world, lambda: trainer.saved[-1].at >= trouble.starts_at, 2 * DAY_S)
    finish(world, trouble)


def latest_is_lost(world: World, chance: random.Random) -> Life:
    """The file that names the checkpoint to resume from is gone."""
    trouble = at_once(world, "latest is lost")
    world.desk.latest_problem = "/lustre/tr-desk/checkpoints has checkpoints and no latest"
    yield from go_on_for(world, chance, 2, 6)
    world.desk.latest_problem = None
    finish(world, trouble)


def crash_loop(world: World, chance: random.Random) -> Life:
    """Every attempt fails before its first checkpoint, until a user fixes what is wrong."""
    if not (yield from settled(world)):
        return
    trainer, shape = world.trainer, world.shape
    usual_s = shape.save_interval * shape.seconds(shape.ramp.batch_at(trainer.samples))
    trouble = world.note("crash loop")
    trainer.faults.crash_within_s = min(40 * MINUTE_S, 0.7 * usual_s)
    assert world.queue.task is not None
    trainer.fail(world.queue.task, world.queue.task.nodes[0])
    if (yield from until(world, lambda: world.without_progress() >= 2, 8 * DAY_S)):
        trouble.seen_from = world.clock.now
    yield from go_on_for(world, chance, 6, 20)
    trainer.faults.crash_within_s = None
    trainer.cancel()
    world.queue.cancel_pending()
    world.queue.submit()
    finish(world, trouble)


#: Kind -> its life.
RUNNING: dict[str, Plant] = {
    "hang in evaluation": _hang("evaluation", "hang in evaluation"),
    "hang in training": _hang("iteration", "hang in training"),
    "hang at start": _hang("start", "hang at start"),
    "slow node": _slower("slow node", 50, (1.06, 1.15), (8, 48)),
    "collapse": _slower("collapse", 10, (1.8, 4.0), (3, 12)),
    "below plan": below_plan,
    "saves fail": saves_fail,
    "latest is lost": latest_is_lost,
    "crash loop": crash_loop,
}
