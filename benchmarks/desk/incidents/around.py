"""Incidents around the training: file systems, the cron, channels, what people leave behind."""

from __future__ import annotations

import random

from benchmarks.desk.clockwork import Life
from benchmarks.desk.incidents.parts import Plant, at_once, finish, go_on_for, until
from benchmarks.desk.shapes import DAY_S, HOUR_S
from benchmarks.desk.world import SCRATCH_BYTES, SCRATCH_INODES, World


def cut_short(world: World, chance: random.Random) -> Life:
    """A file of one of the newest checkpoints is shorter than its manifest says."""
    trouble = at_once(world, "checkpoint cut short")
    world.desk.cut_short = f"global_step{world.trainer.saved[-1].iteration}"
    yield from go_on_for(world, chance, 4, 30)
    world.desk.cut_short = ""
    finish(world, trouble)


def _fills(what: str, kind: str) -> Plant:
    def life(world: World, chance: random.Random) -> Life:
        disk = world.disk
        limit = SCRATCH_BYTES if what == "bytes" else SCRATCH_INODES
        used = disk.used_bytes if what == "bytes" else disk.used_inodes
        days = chance.uniform(1.5, 6)
        trouble = world.note(kind, f"in {days:.1f} days")
        began, rate_per_s = world.clock.now, (limit - used) / (days * DAY_S)
        while True:
            extra = rate_per_s * (world.clock.now - began)
            if what == "bytes":
                disk.extra_bytes = extra
            else:
                disk.extra_inodes = extra
            share = (disk.used_bytes if what == "bytes" else disk.used_inodes) / limit
            if trouble.seen_from is None and (world.clock.now >= began + DAY_S or share >= 0.9):
                trouble.seen_from = world.clock.now
            if share >= 0.96 or world.clock.now >= began + min(days, 4) * DAY_S:
                break
            yield world.clock.now + HOUR_S / 2
        disk.extra_bytes = disk.extra_inodes = 0.0
        yield world.clock.now + HOUR_S
        finish(world, trouble)

    return life


def purge(world: World, chance: random.Random) -> Life:
    """Files that no one has read for a month are about to go."""
    trouble = at_once(world, "purge")
    world.desk.purge = (chance.randint(3, 4000), world.clock.now + chance.uniform(0.5, 3) * DAY_S)
    yield from go_on_for(world, chance, 3, 24)
    world.desk.purge = None
    finish(world, trouble)


def cron_dead(world: World, chance: random.Random) -> Life:
    """Its chain has broken off."""
    trouble = world.note("cron dead")
    world.cron.is_dead = True
    trouble.seen_from = world.cron.heartbeat_at + 2 * HOUR_S
    yield from go_on_for(world, chance, 5, 48)
    world.cron.is_dead = False
    yield world.clock.now + 2 * HOUR_S
    finish(world, trouble)


def cron_job_fails(world: World, chance: random.Random) -> Life:
    """One job of the cron fails at every tick."""
    name, since = chance.choice(("hourly/refill", "hourly/progress")), world.clock.now
    if world.cron.failing:
        return
    trouble = world.note("cron job fails", name)
    world.cron.refills = name != "hourly/refill"
    for failures in range(1, chance.randint(5, 30)):
        world.cron.failing[name] = (failures, since)
        if failures == 2:
            trouble.seen_from = world.clock.now
        yield world.clock.now + HOUR_S
    world.cron.failing.clear()
    world.cron.refills = True
    finish(world, trouble)


def channel_fails(world: World, chance: random.Random) -> Life:
    """The first alert channel takes nothing."""
    trouble = world.note("channel fails")
    world.desk.channel_failing_since = world.clock.now
    trouble.seen_from = world.clock.now + HOUR_S
    yield from go_on_for(world, chance, 4, 30)
    world.desk.channel_failing_since = None
    finish(world, trouble)


def not_published(world: World, chance: random.Random) -> Life:
    """A user edits the run file and forgets it."""
    trouble = at_once(world, "not published")
    world.desk.differs = ("trainer.lr",)
    yield from go_on_for(world, chance, 5, 40)
    world.desk.differs = ()
    finish(world, trouble)


def clock_off(world: World, chance: random.Random) -> Life:
    """The clock of a node of the running task."""
    if not (yield from until(world, lambda: world.trainer.is_training, 4 * DAY_S)):
        return
    task = world.queue.task
    assert task is not None
    trouble = at_once(world, "clock off")
    world.desk.clock_off = (task.nodes[0], chance.choice((-1, 1)) * chance.uniform(45, 600))
    end = world.clock.now + chance.uniform(4, 40) * HOUR_S
    yield from until(world, lambda: world.clock.now >= end or world.queue.task is not task, 4 * DAY_S)
    world.desk.clock_off = None
    finish(world, trouble)


#: Kind -> its life.
AROUND: dict[str, Plant] = {
    "checkpoint cut short": cut_short,
    "disk fills": _fills("bytes", "disk fills"),
    "inodes fill": _fills("inodes", "inodes fill"),
    "purge": purge,
    "cron dead": cron_dead,
    "cron job fails": cron_job_fails,
    "channel fails": channel_fails,
    "not published": not_published,
    "clock off": clock_off,
}
