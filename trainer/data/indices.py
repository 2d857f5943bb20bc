"""Which tokens make which sample: Megatron's document, sample and shuffle index, bit for bit.

T tokens an epoch, E epochs, sequences of S tokens. The documents of all epochs are shuffled and laid end to end;
sample k is the S + 1 tokens from k * S on, so neighbours share one token. The samples are shuffled again. When the
last epoch is needed only in part, it is kept apart in both shuffles, so that what is repeated comes last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Megatron's share of an epoch's samples below which the last epoch is kept apart. BigScience used 0.95.
SEPARATE_LAST_EPOCH_THRESHOLD = 0.80


@dataclass(frozen=True)
class EpochPlan:
    """How often the documents are gone through."""

    epochs: int
    tokens_per_epoch: int
    samples: int  # in all the epochs
    samples_before_last_epoch: int  # equal to `samples` unless the last epoch is kept apart
    separate_last_epoch: bool


@dataclass(frozen=True)
class SampleOrder:
    """document_index: [E * documents] int32, sequences in the order they are laid end to end.
    sample_index: [samples + 1, 2], position in document_index and token offset where each sample starts.
    shuffle_index: [samples], the sample served at each place.
    """

    document_index: NDArray[np.int32]
    sample_index: NDArray[np.integer]
    shuffle_index: NDArray[np.integer]


def plan_epochs(
    tokens_per_epoch: int, sequence_length: int, samples: int | None, threshold: float = SEPARATE_LAST_EPOCH_THRESHOLD
) -> EpochPlan:
    """The fewest epochs that give `samples` samples (None: one epoch), and whether the last one is kept apart."""
    epochs = 1
    if samples is not None:
        epochs = max(1, -(-(samples * sequence_length + 1) // tokens_per_epoch))
    total = (epochs * tokens_per_epoch - 1) // sequence_length
    before_last = ((epochs - 1) * tokens_per_epoch - 1) // sequence_length
    separate = False
    if epochs > 1 and samples is not None:
        per_epoch = (tokens_per_epoch - 1) // sequence_length
        separate = samples - before_last < int(threshold * per_epoch)
    return EpochPlan(epochs, tokens_per_epoch, total, before_last if separate else total, separate)


def build_order(
    first: int, last: int, lengths: NDArray[np.int32], plan: EpochPlan, sequence_length: int, seed: int
) -> SampleOrder:
    """The order of sequences [first, last) of a file with `lengths` [N], for `plan`.

    The draws come in Megatron's sequence.
    """
    random = np.random.RandomState(seed)
    documents = np.arange(first, last, dtype=np.int32)
    document_index = _shuffled_documents(documents, plan, random)
    sample_index = build_sample_index(lengths, document_index, plan.samples, sequence_length)
    shuffle_index = _shuffled_samples(plan, random)
    return SampleOrder(document_index, sample_index, shuffle_index)


def _shuffled_documents(
    documents: NDArray[np.int32], plan: EpochPlan, random: np.random.RandomState
) -> NDArray[np.int32]:
    together = plan.epochs - 1 if plan.separate_last_epoch else plan.epochs
    document_index = np.tile(documents, plan.epochs)
    random.shuffle(document_index[: together * len(documents)])
    if plan.separate_last_epoch:
        random.shuffle(document_index[together * len(documents) :])
    return document_index


def build_sample_index(
    lengths: NDArray[np.int32], document_index: NDArray[np.int32], samples: int, sequence_length: int
) -> NDArray[np.integer]:
    """Where each of `samples` + 1 boundaries lies: the document that holds token k * S, and the offset inside it.

    Counting, for each document, the boundaries up to its end answers all in a few passes, without a search for each.
    """
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
    widest = max(len(document_index), int(lengths.max()))
    kind = np.int32 if widest <= np.iinfo(np.int32).max else np.int64
    sample_index: NDArray[np.integer] = np.empty((samples + 1, 2), kind)
    sample_index[:, 0], sample_index[:, 1] = position, offset
    return sample_index


def _shuffled_samples(plan: EpochPlan, random: np.random.RandomState) -> NDArray[np.integer]:
    kind = np.int64 if plan.samples >= np.iinfo(np.uint32).max - 1 else np.uint32
    shuffle_index: NDArray[np.integer] = np.arange(plan.samples, dtype=kind)
    random.shuffle(shuffle_index[: plan.samples_before_last_epoch])
    # Megatron compares the counts, not the flag: an empty last part draws nothing.
    if plan.samples_before_last_epoch != plan.samples:
        random.shuffle(shuffle_index[plan.samples_before_last_epoch :])
    return shuffle_index
