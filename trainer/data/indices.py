"""Megatron's document, sample and shuffle index, bit for bit: the tokens of each sample.

T tokens an epoch, E epochs, sequences of S tokens. The documents of all epochs are shuffled and concatenated. Sample k
is the S + 1 tokens from k * S on, so neighbours share one token. The samples are then shuffled. If only a part of the
last epoch is needed, it is shuffled separately in both steps, so that repeated data comes last.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data import compiled
from trainer.recipe.lengths import EpochPlan

#: Smaller arrays fit in the nearest caches: numpy finishes before its state is fetched and stored.
_FEWEST = 5_000


def shuffle(values: NDArray[np.integer[Any]], random: np.random.RandomState) -> None:
    """Shuffle exactly as `random.shuffle(values)` does. values: [N], of 4 or 8 bytes each, contiguous."""
    library = compiled.library()
    if library is None or len(values) < _FEWEST:
        random.shuffle(values)
        return
    kind, key, position, *normals = random.get_state(legacy=True)
    words = np.array(key, np.uint32)
    used = ctypes.c_int64(int(position))
    do = library.shuffle_32 if values.itemsize == 4 else library.shuffle_64
    do(compiled.address(values), len(values), compiled.address(words), ctypes.addressof(used))
    random.set_state((kind, words, used.value, *normals))


_MOST_INT32, _MOST_UINT32 = 2**31 - 1, 2**32 - 1


@dataclass(frozen=True)
class SampleOrder:
    """The order of samples.

    document_index: [E * documents], sequences in their concatenated order. sample_index: [samples + 1, 2], position in
    document_index and token offset of each sample's start. shuffle_index: [samples], the sample served at each place.
    """

    document_index: NDArray[np.integer[Any]]
    sample_index: NDArray[np.integer[Any]]
    shuffle_index: NDArray[np.integer[Any]]


@dataclass(frozen=True)
class IndexTypes:
    """The types of a `SampleOrder`'s indices: Megatron's, with 64 bits if 32 do not suffice."""

    document: np.dtype[np.integer[Any]]
    sample: np.dtype[np.integer[Any]]
    shuffle: np.dtype[np.integer[Any]]

    @classmethod
    def of(cls, last: int, documents: int, longest: int, samples: int) -> IndexTypes:
        """Return the types for sequences below `last`, `documents` in all epochs, of at most `longest` tokens."""
        return cls(
            np.dtype(np.int32 if last - 1 <= _MOST_INT32 else np.int64),
            np.dtype(np.int32 if max(documents, longest) <= _MOST_INT32 else np.int64),
            np.dtype(np.uint32 if samples < _MOST_UINT32 - 1 else np.int64),
        )


def index_types(first: int, last: int, lengths: NDArray[np.int32], plan: EpochPlan) -> IndexTypes:
    """Return the types that `build_order` uses."""
    return IndexTypes.of(last, plan.epochs * (last - first), int(lengths.max()), plan.samples)


def build_order(
    first: int, last: int, lengths: NDArray[np.int32], plan: EpochPlan, sequence_length: int, seed: int
) -> SampleOrder:
    """Build the order of sequences [first, last) of a file with `lengths` [N], for `plan`.

    Random numbers are drawn in Megatron's sequence.
    """
    types = index_types(first, last, lengths, plan)
    random = np.random.RandomState(seed)
    document_index = _shuffled_documents(np.arange(first, last, dtype=types.document), plan, random)
    sample_index = build_sample_index(lengths, document_index, plan.samples, sequence_length, types.sample)
    shuffle_index = _shuffled_samples(plan, random, types.shuffle)
    return SampleOrder(document_index, sample_index, shuffle_index)


def _shuffled_documents(
    documents: NDArray[np.integer[Any]], plan: EpochPlan, random: np.random.RandomState
) -> NDArray[np.integer[Any]]:
    together = plan.epochs - 1 if plan.separate_last_epoch else plan.epochs
    document_index = np.tile(documents, plan.epochs)
    shuffle(document_index[: together * len(documents)], random)
    if plan.separate_last_epoch:
        shuffle(document_index[together * len(documents) :], random)
    return document_index


def build_sample_index(
    lengths: NDArray[np.int32],
    document_index: NDArray[np.integer[Any]],
    samples: int,
    sequence_length: int,
    kind: np.dtype[np.integer[Any]],
) -> NDArray[np.integer[Any]]:
    """Return the place of each of `samples` + 1 boundaries: the document with token k * S, and the offset in it."""
    library = compiled.library()
    if library is None:
        return _sample_index_by_counting(lengths, document_index, samples, sequence_length, kind)
    rows: NDArray[np.integer[Any]] = np.empty((samples + 1, 2), kind)
    build = getattr(library, f"sample_index_{8 * document_index.itemsize}_{8 * kind.itemsize}")
    places = compiled.address(lengths), compiled.address(document_index)
    found = build(*places, len(document_index), samples, sequence_length, compiled.address(rows))
    assert found == samples + 1, "the documents have fewer tokens than planned"
    return rows


def _sample_index_by_counting(
    lengths: NDArray[np.int32],
    document_index: NDArray[np.integer[Any]],
    samples: int,
    sequence_length: int,
    kind: np.dtype[np.integer[Any]],
) -> NDArray[np.integer[Any]]:
    """Compute the same without a search: count the boundaries up to the end of each document, in a few passes."""
    ends = np.cumsum(lengths[document_index], dtype=np.int64)
    # The first boundary k with k * S >= the document's end is behind it, and so are all later ones.
    first_behind = -(-ends // sequence_length)
    first_behind = first_behind[first_behind <= samples]
    position = np.cumsum(np.bincount(first_behind, minlength=samples + 1), dtype=np.int64)
    boundaries = np.arange(samples + 1, dtype=np.int64) * sequence_length
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    offset = boundaries - starts[position]
    # Megatron starts at the first document even if it is empty.
    position[0] = 0
    rows: NDArray[np.integer[Any]] = np.empty((samples + 1, 2), kind)
    rows[:, 0], rows[:, 1] = position, offset
    return rows


def _shuffled_samples(
    plan: EpochPlan, random: np.random.RandomState, kind: np.dtype[np.integer[Any]]
) -> NDArray[np.integer[Any]]:
    shuffle_index: NDArray[np.integer[Any]] = np.arange(plan.samples, dtype=kind)
    shuffle(shuffle_index[: plan.samples_before_last_epoch], random)
    # Megatron compares the counts, not the flag: an empty last part draws nothing.
    if plan.samples_before_last_epoch != plan.samples:
        shuffle(shuffle_index[plan.samples_before_last_epoch :], random)
    return shuffle_index


#: The order stores each place's dataset in 16 bits, as Megatron's does.
MOST_DATASETS = 32_767


def normalized(weights: Sequence[float]) -> list[float]:
    """Return weights that add up to one."""
    array = np.array(weights, np.float64)
    return [float(weight) for weight in array / array.sum()]


def blend_order(weights: Sequence[float], samples: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the dataset, and the place in it, for each of `samples` places.

    At place i the next dataset is the one with the largest `w * max(i, 1) - used`, the first of equals. At most
    MOST_DATASETS.
    """
    shares = np.array(weights, np.float64)
    dataset, place = np.empty(samples, np.int16), np.empty(samples, np.int64)
    library = compiled.library()
    if library is not None:
        library.blend(
            compiled.address(shares), len(shares), samples, compiled.address(dataset), compiled.address(place)
        )
        return dataset, place
    used = np.zeros(len(shares))
    for number in range(samples):
        best = int((shares * max(number, 1) - used).argmax())
        dataset[number], place[number] = best, used[best]
        used[best] += 1
    return dataset, place
