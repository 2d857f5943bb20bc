"""The order in which a training reads its samples, as a digest of some places."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from trainer.data.gpt_dataset import BlendedDataset, GPTDataset

#: So many first places are looked at; fewer for data that has fewer samples, so that a longer training can be compared.
_PLACES = (16, 64, 256, 1024)


# Of each source of a blend; a rare one may have none of the blend's first places, and be shuffled anew by itself.
_PLACES_OF_A_SOURCE = 16


def sample_order(dataset: GPTDataset | BlendedDataset) -> dict[str, str]:
    """xxh64 of where the first samples lie, by how many were looked at: those of two data sets that both can tell.

    Of a blend also `sources`: of where the first samples of each of its sources lie.
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
    """Number of the source, sequence, token in it that the sample at `place` begins with."""
    if isinstance(dataset, BlendedDataset):
        number, at = dataset.source_of(place)
        return number, *dataset.sources[number].begins_at(at)
    return 0, *dataset.begins_at(place)
