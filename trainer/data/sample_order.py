"""A digest of the order in which a training reads its samples."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from trainer.data.gpt_dataset import BlendedDataset, GPTDataset

#: Numbers of first places in the digests. Smaller ones allow comparing trainings of different lengths.
_PLACES = (16, 64, 256, 1024)


# For each source of a blend: a rare one may be absent from the blend's first places and change its order alone.
_PLACES_OF_A_SOURCE = 16


def sample_order(dataset: GPTDataset | BlendedDataset) -> dict[str, str]:
    """Return xxh64 of the first samples' places, by number of samples; two data sets compare the common numbers.

    For a blend also `sources`: digests of each source's own first samples.
    """
    counts = [count for count in _PLACES if count <= len(dataset)]
    places = [_lies_at(dataset, place) for place in range(counts[-1] if counts else 0)]
    found = {str(count): _digest(places[:count]) for count in counts}
    if isinstance(dataset, BlendedDataset):
        found["sources"] = _digest(
            (number, *source.begins_at(place))
            for number, source in enumerate(dataset.sources)
            for place in range(min(_PLACES_OF_A_SOURCE, len(source)))
        )
    return found


def _digest(places: Iterable[tuple[int, int, int]]) -> str:
    import xxhash

    table: NDArray[np.int64] = np.array(list(places), np.int64).reshape(-1, 3)
    return xxhash.xxh64(table.astype("<i8").tobytes()).hexdigest()


def _lies_at(dataset: GPTDataset | BlendedDataset, place: int) -> tuple[int, int, int]:
    """Return the source's number, the sequence and the token at which the sample at `place` begins."""
    if isinstance(dataset, BlendedDataset):
        number, at = dataset.source_of(place)
        return number, *dataset.sources[number].begins_at(at)
    return 0, *dataset.begins_at(place)
