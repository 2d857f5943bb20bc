"""Which tokens make which sample: Megatron's document, sample and shuffle index, bit for bit.

T tokens an epoch, E epochs, sequences of S tokens. The documents of all epochs are shuffled and laid end to end;
sample k is the S + 1 tokens from k * S on, so neighbours share one token. The samples are shuffled again. When the
last epoch is needed only in part, it is kept apart in both shuffles, so that what is repeated comes last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data import compiled
from trainer.data.shuffling import shuffle
from trainer.recipe.passes import EpochPlan

_MOST_INT32, _MOST_UINT32 = 2**31 - 1, 2**32 - 1


@dataclass(frozen=True)
class SampleOrder:
    """document_index: [E * documents], sequences in the order they are laid end to end.
    sample_index: [samples + 1, 2], position in document_index and token offset where each sample starts.
    shuffle_index: [samples], the sample served at each place.
    """

    document_index: NDArray[np.integer[Any]]
    sample_index: NDArray[np.integer[Any]]
    shuffle_index: NDArray[np.integer[Any]]


@dataclass(frozen=True)
class IndexTypes:
    """The types of a `SampleOrder`'s indices: Megatron's, 64 bits where 32 do not hold what is counted."""

    document: np.dtype[np.integer[Any]]
    sample: np.dtype[np.integer[Any]]
    shuffle: np.dtype[np.integer[Any]]

    @classmethod
    def of(cls, last: int, documents: int, longest: int, samples: int) -> IndexTypes:
        """For sequences below `last`, `documents` of them in all epochs, `longest` tokens long at most."""
        return cls(
            np.dtype(np.int32 if last - 1 <= _MOST_INT32 else np.int64),
            np.dtype(np.int32 if max(documents, longest) <= _MOST_INT32 else np.int64),
            np.dtype(np.uint32 if samples < _MOST_UINT32 - 1 else np.int64),
        )


def index_types(first: int, last: int, lengths: NDArray[np.int32], plan: EpochPlan) -> IndexTypes:
    """The types that `build_order` gives."""
    return IndexTypes.of(last, plan.epochs * (last - first), int(lengths.max()), plan.samples)


def build_order(
    first: int, last: int, lengths: NDArray[np.int32], plan: EpochPlan, sequence_length: int, seed: int
) -> SampleOrder:
    """The order of sequences [first, last) of a file with `lengths` [N], for `plan`.

    The draws come in Megatron's sequence.
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
    """Where each of `samples` + 1 boundaries lies: the document that holds token k * S, and the offset inside it."""
    library = compiled.library()
    if library is None:
        return _sample_index_by_counting(lengths, document_index, samples, sequence_length, kind)
    rows: NDArray[np.integer[Any]] = np.empty((samples + 1, 2), kind)
    build = getattr(library, f"sample_index_{8 * document_index.itemsize}_{8 * kind.itemsize}")
    places = compiled.address(lengths), compiled.address(document_index)
    found = build(*places, len(document_index), samples, sequence_length, compiled.address(rows))
    assert found == samples + 1, "the documents hold fewer tokens than was planned with"
    return rows


def _sample_index_by_counting(
    lengths: NDArray[np.int32],
    document_index: NDArray[np.integer[Any]],
    samples: int,
    sequence_length: int,
    kind: np.dtype[np.integer[Any]],
) -> NDArray[np.integer[Any]]:
    """Counting, for each document, the boundaries up to its end answers all in a few passes, without a search."""
    ends = np.cumsum(lengths[document_index], dtype=np.int64)
    # The first boundary k with k * S >= the document's end lies behind it, and so do all later ones.
    first_behind = -(-ends // sequence_length)
    first_behind = first_behind[first_behind <= samples]
    position = np.cumsum(np.bincount(first_behind, minlength=samples + 1), dtype=np.int64)
    boundaries = np.arange(samples + 1, dtype=np.int64) * sequence_length
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    offset = boundaries - starts[position]
    # Megatron starts at the first document even when it is empty.
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
