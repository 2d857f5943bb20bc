"""What a training has had of each of its data sets, and when it is through each of them once more."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.data.gpt_dataset import BlendedDataset, GPTDataset
from trainer.data.run_order import RunOrder
from trainer.formats.checkpoint.batch_history import BatchHistory
from trainer.formats.data.data_inspected import EpochEnd, RealisedMixture, RealisedSource
from trainer.formats.errors import DataError


def realised_mixture(order: RunOrder, up_to: int | None) -> RealisedMixture:
    """Of the first `up_to` samples; None: of those that the checkpoint has consumed, or all where there is none.

    Raises DataError for more than the training has.
    """
    if up_to is None:
        up_to = order.consumed or order.end
    if not 0 <= up_to <= order.end:
        raise DataError(f"--mixture {up_to}: the training ends with {order.end:,} samples consumed")
    skipped = order.history.skipped_samples(up_to)
    sources = [_realised(order, number, up_to, skipped) for number in range(len(order.sources))]
    trained = sum(one.samples for one in sources)
    return RealisedMixture(
        up_to=up_to,
        iteration=order.history.known_iteration_of(up_to - 1) if up_to else None,
        end_sample=order.end,
        samples=trained,
        skipped_samples=up_to - trained,
        sequence_length=order.dataset.sequence_length,
        is_checkpoints_order=order.is_checkpoints_order,
        sources=sources,
    )


def _realised(order: RunOrder, number: int, up_to: int, skipped: list[tuple[int, int]]) -> RealisedSource:
    source = order.sources[number]
    places = _places(order, number)
    read = int(np.searchsorted(places, up_to))
    left_out = sum(int(np.searchsorted(places, last) - np.searchsorted(places, first)) for first, last in skipped)
    trained_in_all = up_to - sum(last - first for first, last in skipped)
    tokens = source.tokens_per_epoch
    return RealisedSource(
        data=source.prefix,
        first_document=source.first,
        end_document=source.last,
        tokens_per_epoch=tokens,
        asked=order.dataset.weights[number] if isinstance(order.dataset, BlendedDataset) else 1.0,
        realised=(read - left_out) / trained_in_all if trained_in_all else 0.0,
        samples=read - left_out,
        skipped_samples=left_out,
        epochs=read * source.sequence_length / tokens,
        epoch_ends=_epoch_ends(places, source, tokens, order.history),
    )


def _places(order: RunOrder, number: int) -> NDArray[np.int64]:
    """The training's samples that the data set gives, up to the training's end."""
    if isinstance(order.dataset, BlendedDataset):
        return np.flatnonzero(order.dataset.dataset_index[: order.end] == number)
    return np.arange(order.end)


def _epoch_ends(places: NDArray[np.int64], source: GPTDataset, tokens: int, history: BatchHistory) -> list[EpochEnd]:
    """The samples of n epochs are those that `plan_epochs` counts: the last token of all has no successor."""
    found = []
    epoch = 1
    while (samples := (epoch * tokens - 1) // source.sequence_length) <= len(places):
        if samples:
            last = int(places[samples - 1])
            found.append(EpochEnd(epoch=epoch, samples=last + 1, iteration=history.known_iteration_of(last)))
        epoch += 1
    return found
