"""Mixing datasets by weight: Megatron's order, in which each sample goes to the dataset furthest behind its share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.data import compiled

#: Pieces simulated side by side, and the least that each simulates.
MOST_PIECES = 16_384
LEAST_STEPS = 1_024
#: The order names each place's dataset in 16 bits, as Megatron's does.
MOST_DATASETS = 32_767


def normalized(weights: Sequence[float]) -> list[float]:
    """Weights that add up to one."""
    array = np.array(weights, np.float64)
    return [float(weight) for weight in array / array.sum()]


def blend_order(weights: Sequence[float], samples: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """For each of `samples` places the dataset and the place in that dataset.

    At place i the dataset with the largest `w * max(i, 1) - used` is next, the first of equals. At most MOST_DATASETS.
    """
    shares = np.array(weights, np.float64)
    library = compiled.library()
    if library is None:
        return _blend_in_pieces(shares, samples)
    dataset, place = np.empty(samples, np.int16), np.empty(samples, np.int64)
    library.blend(compiled.address(shares), len(shares), samples, compiled.address(dataset), compiled.address(place))
    return dataset, place


def _blend_in_pieces(shares: NDArray[np.float64], samples: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Every step hangs on the one before, but the rule soon forgets where it started: pieces are run side by side from
    guessed counts, and a piece whose guess differs from what the piece before it ended with is run again from there.
    What comes out is exactly the step by step result.
    """
    steps = max(LEAST_STEPS, -(-samples // MOST_PIECES), min(int(4 / shares.min()), -(-samples // 256)))
    first = np.arange(0, samples, steps, dtype=np.int64)
    start_used = _guess(shares, first)
    end_used = np.zeros_like(start_used)
    dataset = np.zeros((len(first), steps), np.int16)
    stale = np.arange(len(first))
    while len(stale):
        dataset[stale], end_used[stale] = _run(shares, first[stale], start_used[stale], steps)
        followers = np.arange(1, len(first))
        wrong = followers[(start_used[1:] != end_used[:-1]).any(axis=1)]
        start_used[wrong] = end_used[wrong - 1]
        stale = wrong
    order = dataset.reshape(-1)[:samples]
    return order, _places(order, len(shares))


def _guess(shares: NDArray[np.float64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each dataset was probably used before each place of `first`.

    Shares rounded down, the largest remainders up.
    """
    exact = shares * first[:, None]
    used = np.floor(exact).astype(np.int64)
    missing = first - used.sum(axis=1)
    rank = np.argsort(np.argsort(used - exact, axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray(used + (rank < missing[:, None]), np.int64)


def _run(
    shares: NDArray[np.float64], first: NDArray[np.int64], used: NDArray[np.int64], steps: int
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """`steps` places from each of `first`, [pieces, steps], and the counts afterwards, [pieces, datasets]."""
    counts = used.astype(np.float64)
    chosen = np.empty((steps, len(first)), np.int16)
    rows = np.arange(len(first))
    place = first.astype(np.float64)
    behind = np.empty_like(counts)
    for step in range(steps):
        np.multiply(shares, np.maximum(place, 1.0)[:, None], out=behind)
        np.subtract(behind, counts, out=behind)
        best = behind.argmax(axis=1)
        chosen[step] = best
        counts[rows, best] += 1
        place += 1
    return chosen.T, counts.astype(np.int64)


def _places(order: NDArray[np.int16], datasets: int) -> NDArray[np.int64]:
    """How often its dataset came before, at each place."""
    places = np.empty(len(order), np.int64)
    for number in range(datasets):
        mine = np.flatnonzero(order == number)
        places[mine] = np.arange(len(mine))
    return places
