"""The trainer's datasets from its options. Without torch: what builds their order ahead needs none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data import blend
from trainer.data.gpt_dataset import BlendedDataset, Dataset, GPTDataset, OrderSettings
from trainer.data.index_cache import IndexCache
from trainer.data.indexed import IndexedTokens
from trainer.formats.data_check import asked_samples, fewer_than_asked, samples_of_one_pass
from trainer.formats.data_sources import Group, Source, groups
from trainer.formats.errors import DataError
from trainer.formats.vocabulary_files import vocab_size

__all__ = ["DataError", "Dataset", "Datasets", "build_datasets", "vocab_size"]


@dataclass(frozen=True)
class Datasets:
    """train: None when no training samples were asked for.

    valid, test: by the name that logs show; empty without data for them.
    """

    train: Dataset | None
    valid: dict[str, Dataset]
    test: dict[str, Dataset]


def build_datasets(
    options: Mapping[str, Any],
    train_samples: int,
    valid_samples: int,
    test_samples: int,
    is_builder: bool = True,
    barrier: Callable[[], None] = lambda: None,
    cache: Callable[[list[Path], bool, Callable[[], None]], IndexCache] = IndexCache,
) -> Datasets:
    """Datasets of at least so many samples each (every validation set has `valid_samples`); 0 leaves a split out.

    Every rank calls it. The one with `is_builder` builds the sample order and keeps it as files; the others wait in
    `barrier` and map them. cache: makes what keeps them, of folders, `is_builder` and `barrier`. Raises DataError, on
    every rank alike.
    """
    builder = _Builder(options, lambda folders: cache(folders, is_builder, barrier))
    train = builder.datasets("train", train_samples)
    return Datasets(
        next(iter(train.values()), None),
        builder.datasets("valid", valid_samples),
        builder.datasets("test", test_samples),
    )


class _Builder:
    """Opens each file once and builds datasets over it."""

    def __init__(self, options: Mapping[str, Any], make_cache: Callable[[list[Path]], IndexCache]):
        self._options, self._make_cache = options, make_cache
        self._settings = OrderSettings(options["seq_length"], options["seed"], options["separate_last_epoch_threshold"])
        self._open: dict[str, IndexedTokens] = {}

    def datasets(self, split: str, samples: int) -> dict[str, Dataset]:
        """The datasets of `split` by name."""
        if samples <= 0:
            return {}
        found = groups(self._options, split)
        if split == "valid":
            for group in found:
                self._refuse_fewer_than_asked(group)
        return {group.name: self._dataset(group, split, samples) for group in found}

    def _refuse_fewer_than_asked(self, group: Group) -> None:
        has, length = 0, self._settings.sequence_length
        for source in group.sources:
            data = self._data(source)
            first, last = source.documents(len(data))
            has += samples_of_one_pass(int(data.lengths[first:last].sum(dtype=np.int64)), length)
        if 0 < has < asked_samples(self._options):  # where it has none, whoever builds it says so
            raise fewer_than_asked(group.name, has, self._options)

    def _dataset(self, group: Group, split: str, samples: int) -> Dataset:
        if len(group.sources) == 1 and group.sources[0].weight is None:
            return self._gpt(group.sources[0], samples, split)
        weights = blend.normalized([source.weight or 0.0 for source in group.sources])
        sizes = blend.sizes_to_build(weights, samples)
        name = split if group.name == split else f"{split} ({group.name})"
        parts = [self._gpt(source, size, name) for source, size in zip(group.sources, sizes, strict=True)]
        return BlendedDataset(
            parts, weights, sum(blend.target_sizes(weights, samples)), self._cache(group.sources[0]), name
        )

    def _gpt(self, source: Source, samples: int, name: str) -> GPTDataset:
        data = self._data(source)
        first, last = source.documents(len(data))
        return GPTDataset(data, first, last, samples, self._settings, self._cache(source), name)

    def _data(self, source: Source) -> IndexedTokens:
        data = self._open.get(source.prefix)
        if data is None:
            data = self._open[source.prefix] = IndexedTokens(source.prefix)
        return data

    def _cache(self, source: Source) -> IndexCache:
        given = self._options.get("data_cache_path")
        folders = [Path(given)] if given else [Path(source.prefix).absolute().parent / "cache"]
        if not given and self._options.get("save"):
            folders.append(Path(self._options["save"]) / "data-cache")
        return self._make_cache(folders)
