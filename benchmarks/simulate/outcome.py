"""The result of three simulated months, by the product's own account of a run's time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import simpy

from benchmarks.desk.log import moment
from benchmarks.desk.shapes import DAY_S
from benchmarks.simulate.cluster import Cluster
from benchmarks.simulate.people import Person
from benchmarks.simulate.policies import Way
from benchmarks.simulate.run import Run
from benchmarks.simulate.setting import Setting
from opsctl.diagnosis.goodput.account import Part, account


@dataclass(frozen=True)
class Outcome:
    """One seed of one way."""

    goodput: float  # of the wall time, what iterations that count take on healthy nodes
    of_node_hours: float  # the same of the node hours that were held, spare ones too
    shares: Mapping[str, float]  # of the wall time by part; what slow nodes took of the trained time is `slowed`
    iterations: int
    attempts: int
    saves: int
    wall_s: float


def simulate(setting: Setting, way: Way, seed: int) -> Outcome:
    """All of it."""
    run = months(setting, way, seed)
    return outcome_of(run)


def months(setting: Setting, way: Way, seed: int) -> Run:
    """Let the time pass."""
    env = simpy.Environment()

    def chance(what: str) -> random.Random:
        return random.Random(f"{seed}/{what}")

    cluster = Cluster(env, setting, chance)
    run = Run(env, setting, way, cluster, chance)
    Person(env, run, chance("person"))
    env.run(until=setting.days * DAY_S)
    return run


def outcome_of(run: Run) -> Outcome:
    """Its account."""
    setting, until_s = run.setting, run.env.now
    if run.live is not None:
        run.live.write_line()
    reached = run.live.iteration if run.live is not None else run.saved
    amounts = account(
        run.attempts,
        run.spans,
        [one.submitted_at for one in run.queue.chains],
        run.held,
        moment(until_s),
        not run.queue.is_empty,
    )
    kept_s = reached * setting.seconds_per_iteration
    shares = {str(part): amounts.of(part) / 1000 / until_s for part in Part}
    shares["slowed"] = shares[Part.TRAINED] - kept_s / until_s
    held_s = amounts.whole_gpu_ms / 1000
    return Outcome(
        goodput=kept_s / until_s,
        of_node_hours=kept_s * setting.nodes / held_s if held_s else 0.0,
        shares=shares,
        iterations=reached,
        attempts=len(run.attempts),
        saves=sum(len(span.saves_s) for span in run.spans),
        wall_s=until_s,
    )
