"""One seed from its first look to its last."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.desk.planting import GAP_DAYS, plant_all
from benchmarks.desk.score import Following, Score, score
from benchmarks.desk.shapes import DAY_S, HOUR_S, MINUTE_S
from benchmarks.desk.snapshots import Viewer, settings_of
from benchmarks.desk.world import World
from opsctl.monitoring.check import Detector, run_detectors
from opsctl.monitoring.finding import Finding
from opsctl.monitoring.runner import pulse_lines
from opsctl.monitoring.snapshot import Snapshot

#: Looks on the hour begin some minutes after it: the watch is one of the cron's jobs.
_AFTER_THE_HOUR_S = (4 * MINUTE_S, 9 * MINUTE_S)


def simulate(
    seed: int,
    days: float,
    detectors: Sequence[Detector],
    gap_days: tuple[float, float] = GAP_DAYS,
    roughness: float = 1.0,
) -> Score:
    """Hourly looks at the world of `seed`, for so long, with all that these detectors find in it."""
    began = time.process_time()
    world = World(seed, roughness)
    plant_all(world, gap_days)
    viewer, settings = Viewer(world), settings_of(world)
    following = Following(detector.name for detector in detectors)
    chance, looks = world.chance("looks"), []
    for hour in range(24, round(days * DAY_S / HOUR_S)):
        at = hour * HOUR_S + chance.uniform(*_AFTER_THE_HOUR_S)
        world.clock.run_until(at)
        snapshot = viewer.look()
        findings = run_detectors(detectors, snapshot, settings)
        following.look(at, hour, findings, _facts(world, snapshot))
        _tell(world, snapshot, findings)
        looks.append(at)
    return score(seed, world.troubles, following.alarms, looks, time.process_time() - began)


def _tell(world: World, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
    """The watch's own lines go into the log, between the trainer's."""
    lines = pulse_lines([one for one in findings if one.check == "training"], snapshot.now)
    if lines:
        world.log.write(world.clock.now, "\n".join(lines))


def _facts(world: World, snapshot: Snapshot) -> str:
    """Return what a reader of a wrong alarm wants to know first."""
    trainer, now = world.trainer, world.clock.now
    near = (one for one in world.troubles if one.ends_at is None or one.ends_at > now - DAY_S)
    told = ", ".join(
        f"{one.kind.name} {one.words} {(one.starts_at - now) / HOUR_S:+.0f} h"
        + ("" if one.ends_at is None else f" to {(one.ends_at - now) / HOUR_S:+.0f} h")
        for one in near
    )
    return (
        f"{world.shape.name}, iteration {trainer.iteration}, {trainer.since_start} log lines since the start, "
        f"batch {world.shape.ramp.batch_at(trainer.samples)}, {len(snapshot.jobs)} jobs, near: {told or 'nothing'}"
    )
