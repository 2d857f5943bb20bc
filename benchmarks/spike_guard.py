"""The spike guard on made-up trainings whose spikes are known: how many it finds, how soon, and what it takes for one.

    python -m benchmarks.spike_guard [FIRST_SEED LAST_SEED]

Each seed is a training of its own: 12,000 iterations or more with a loss that falls by a power law and faster while the
learning rate decays, a batch that ramps up, noise with heavy tails, drifts and steps of the data's mixture, single
large gradients, and restarts that repeat up to 100 iterations from what a checkpoint keeps. Spikes come in four kinds.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainer.recipe.spike_guard import LOG, GuardState, SpikeGuard

#: Those that thresholds were looked at with; others are set aside.
DEVELOPMENT = range(10)
#: As the options' defaults.
GUARD = SpikeGuard(frozenset((LOG,)), window=128, deviations=8.0, patience=3, margin=10, rollbacks=2)
#: A spike counts as found in time by so many iterations after it begins.
IN_TIME = 10
#: What may follow a spike is neither right nor wrong for so many iterations after its end: it moves what is usual.
AFTER = 200


@dataclass(frozen=True)
class Spike:
    """One that is known. loss: what it adds, by iterations since `first`; norm: what it multiplies by."""

    kind: str
    first: int
    last: int
    loss: Callable[[int], float]
    norm: Callable[[int], float]


@dataclass(frozen=True)
class Outcome:
    """The result of one training."""

    steps: int
    delays: dict[str, list[int | None]]  # kind -> iterations until each of its spikes was found; None: never
    false_alarms: int  # iterations
    false_rollbacks: int  # that would have been asked for


def main(seeds: range = DEVELOPMENT) -> dict[str, object]:
    """Measure and print; what was measured."""
    outcomes = [outcome(seed) for seed in seeds]
    by_kind: dict[str, list[int | None]] = {}
    for one in outcomes:
        for kind, delays in one.delays.items():
            by_kind.setdefault(kind, []).extend(delays)
    by_kind["all"] = [delay for delays in by_kind.values() for delay in delays]
    found: dict[str, object] = {kind: _found(kind, delays) for kind, delays in by_kind.items()}
    steps, false = sum(one.steps for one in outcomes), sum(one.false_alarms for one in outcomes)
    rollbacks = sum(one.false_rollbacks for one in outcomes)
    print(f"{steps:,} iterations: {false} falsely unusual, {false / steps * 10_000:.2f} in 10,000")
    print(f"rollbacks for nothing: {rollbacks}")
    share = {"false_alarms_per_10000": false / steps * 10_000, "rollbacks_for_nothing": rollbacks}
    return {"seeds": f"{seeds[0]}-{seeds[-1]}", "steps": steps, **found, **share}


def _found(kind: str, delays: list[int | None]) -> dict[str, object]:
    in_time = [one for one in delays if one is not None and one <= IN_TIME]
    middle, longest = (statistics.median(in_time), max(in_time)) if in_time else (None, None)
    print(f"{kind}: {len(in_time)} of {len(delays)} found, {middle} iterations later, {longest} at most")
    return {"spikes": len(delays), "found": len(in_time), "median_delay": middle, "longest_delay": longest}


def outcome(seed: int) -> Outcome:
    """Return the result of one training."""
    chance = random.Random(seed)
    length = chance.choice((12_000, 15_000, 20_000))
    spikes = list(_spikes(chance, length))
    values = list(_training(chance, length, spikes))
    flagged, rolled, steps = _guarded(chance, values)
    delays: dict[str, list[int | None]] = {}
    for spike in spikes:
        delay = next((at - spike.first for at in sorted(flagged) if spike.first <= at <= spike.last), None)
        delays.setdefault(spike.kind, []).append(delay)

    def is_of_a_spike(iteration: int) -> bool:
        return any(one.first <= iteration <= one.last + AFTER for one in spikes)

    false = sum(not is_of_a_spike(one) for one in flagged)
    return Outcome(steps, delays, false, sum(not is_of_a_spike(one) for one in rolled))


def _guarded(chance: random.Random, values: list[tuple[float, float]]) -> tuple[list[int], list[int], int]:
    """Iterations that were judged unusual, those that three of them together end, and how many were judged."""
    state, flagged, rolled, judged = GuardState(), list[int](), list[int](), 0
    kept, kept_at = state, 0
    restarts = {chance.randrange(1000, len(values)) for _ in range(8)}
    iteration = 1
    while iteration <= len(values):
        judgement = GUARD.judge(state, *values[iteration - 1])
        state = GUARD.after_step(state, iteration, judgement, skipped=False)
        judged += 1
        if judgement.is_unusual:
            flagged.append(iteration)
            if len(state.unusual) == GUARD.patience:
                rolled.append(iteration)
        if iteration % 100 == 0:
            kept, kept_at = state, iteration
        if iteration in restarts:
            restarts.discard(iteration)
            state, iteration = kept, kept_at
        iteration += 1
    return flagged, rolled, judged


def _training(chance: random.Random, length: int, spikes: list[Spike]) -> Iterator[tuple[float, float]]:
    """(loss, gradient norm) of each iteration."""
    noise, norm_noise = chance.uniform(0.003, 0.012), chance.uniform(0.08, 0.22)
    floor, freedom = chance.uniform(1.7, 2.6), chance.choice((3, 4, 5, 8))
    ramp, warmup = chance.randrange(1, length // 3), chance.randrange(100, 1000)
    decay = chance.randrange(2 * length // 3, length)
    mixture = {chance.randrange(1000, length): chance.uniform(-0.03, 0.03) for _ in range(3)}
    level = drift = norm_drift = 0.0
    for iteration in range(1, length + 1):
        batch = min(1.0, 0.1 + 0.9 * iteration / ramp)
        level += mixture.get(iteration, 0.0)
        drift = 0.98 * drift + chance.gauss(0, 0.0008)
        norm_drift = 0.99 * norm_drift + chance.gauss(0, 0.012)
        curve = floor + (10.8 - floor) * (1 + iteration / (0.2 * warmup)) ** -0.6
        if iteration > decay:
            curve *= 1 - 0.05 * (iteration - decay) / (length - decay)
        loss = curve * (1 + level + drift + _heavy(chance, freedom) * noise / math.sqrt(batch))
        norm = (0.15 + math.exp(-iteration / warmup)) / batch**0.25
        norm *= math.exp(norm_drift + _heavy(chance, freedom) * norm_noise)
        if chance.random() < 1 / 2000:
            norm *= chance.uniform(1.5, 3.0)
        for spike in spikes:
            if spike.first <= iteration <= spike.last:
                since = iteration - spike.first
                loss, norm = loss + spike.loss(since) * floor, norm * spike.norm(since)
        yield loss, norm


def _heavy(chance: random.Random, freedom: int) -> float:
    """Student's t, to a variance of 1."""
    value = chance.gauss(0, 1) / math.sqrt(chance.gammavariate(freedom / 2, 2) / freedom)
    return value * math.sqrt((freedom - 2) / freedom)


def _spikes(chance: random.Random, length: int) -> Iterator[Spike]:
    """One in each two to four thousand iterations, none among the first thousand."""
    at = chance.randrange(1000, 3000)
    while at < length - 1000:
        yield _SPIKES[chance.randrange(len(_SPIKES))](chance, at)
        at += chance.randrange(2000, 4000)


def _climbing(chance: random.Random, first: int) -> Spike:
    """Gradients grow from step to step by a factor, and the loss follows, as BLOOM's did."""
    factor, steps, height = chance.uniform(1.5, 6), chance.randrange(4, 8), chance.uniform(0.08, 1.5)
    back = chance.uniform(10, 100)
    return Spike(
        "climbing gradients",
        first,
        first + steps + int(4 * back),
        lambda since: 0.0 if since < steps - 2 else height * math.exp(-max(0, since - steps) / back),
        lambda since: factor ** min(since + 1, steps) if since <= steps else 1 + 20 * math.exp(-(since - steps) / 5),
    )


def _abrupt(chance: random.Random, first: int) -> Spike:
    """One step's gradients are huge, and the loss is high from the next one on."""
    size, height, back = 10 ** chance.uniform(0.7, 3), chance.uniform(0.05, 1.5), chance.uniform(5, 80)
    return Spike(
        "abrupt",
        first,
        first + int(4 * back),
        lambda since: height * math.exp(-since / back) if since else 0.0,
        lambda since: size if since == 0 else 1 + 5 * math.exp(-since / 5),
    )


def _loss_alone(chance: random.Random, first: int) -> Spike:
    """Some steps of data that the model cannot learn from; the gradients stay below what would be noticed."""
    height, steps, grown = chance.uniform(0.06, 0.6), chance.randrange(2, 30), chance.uniform(1.2, 2.5)
    return Spike("loss alone", first, first + steps, lambda _: height, lambda _: grown)


def _no_number(chance: random.Random, first: int) -> Spike:
    steps = chance.randrange(1, 5)
    return Spike("no number", first, first + steps, lambda _: math.nan, lambda _: math.nan)


_SPIKES = (_climbing, _abrupt, _loss_alone, _no_number)


if __name__ == "__main__":
    asked = [int(word) for word in sys.argv[1:]]
    main(range(asked[0], asked[1] + 1) if asked else DEVELOPMENT)
