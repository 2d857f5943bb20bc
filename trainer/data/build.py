"""The trainer's datasets from its options. No torch: programs that build the sample orders ahead do not need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data import indices
from trainer.data.gpt_dataset import BlendedDataset, BlendOrder, Dataset, GPTDataset, Pair, PartOrder
from trainer.data.index_cache import Arrays, IndexCache
from trainer.data.indices import IndexTypes, SampleOrder, build_order, index_types
from trainer.formats.data.data_sources import (
    Group,
    Source,
    asked_samples,
    fewer_than_asked,
    groups,
    samples_of_one_pass,
    too_small,
)
from trainer.formats.data.vocabulary_files import vocab_size
from trainer.formats.errors import DataError
from trainer.recipe.lengths import EpochPlan, plan_epochs, sizes_to_build, target_sizes


@dataclass(frozen=True)
class OrderSettings:
    """The settings, besides the data, that decide the order of samples."""

    sequence_length: int
    seed: int
    separate_last_epoch_threshold: float


@dataclass(frozen=True)
class Part:
    """The part of a data set from one pair of files: a range of documents, and at least `samples` (None: one epoch)."""

    pair: Pair
    source: Source
    samples: int | None


def order_alone(part: Part, settings: OrderSettings, cache: IndexCache, name: str) -> PartOrder:
    """Load or build the order of one file's samples. `name` is for messages. Raises DataError."""
    data = part.pair.data
    first, last = part.source.documents(len(data))
    asked = {"samples": part.samples, "range": [first, last], "settings": vars(settings)}
    arrays = cache.load_or_build(
        {"what": "GPT sample order", "version": 1, "data": part.pair.identity, **asked},
        lambda: _arrays(_Planned.of(part, settings, name).build(settings)),
    )
    return PartOrder(first, last, None, SampleOrder(arrays["document"], arrays["sample"], arrays["shuffle"]))


def order_blend(
    parts: Sequence[Part], weights: Sequence[float], samples: int, settings: OrderSettings, cache: IndexCache, name: str
) -> BlendOrder:
    """Load or build the orders of a blend and all its files. `weights` add up to one. Raises DataError."""
    if len(parts) > indices.MOST_DATASETS:
        raise DataError(f"the {name} blend has {len(parts):,} sources, at most {indices.MOST_DATASETS:,} are possible")
    # As texts: describing thousands of nested dictionaries takes a second.
    sources = [f"{part.samples} samples of {part.source.start}:{part.source.end} of {part.pair.text}" for part in parts]
    description = {"weights": [weight.hex() for weight in weights], "sources": sources, "settings": vars(settings)}
    arrays = cache.load_or_build(
        {"what": "blend of GPT sample orders", "version": 1, "samples": samples, **description},
        lambda: _build_blend(parts, weights, samples, settings, name),
    )
    return BlendOrder(_cut(arrays), arrays["dataset"], arrays["place"])


@dataclass(frozen=True)
class _Planned:
    """A part whose entries are all checked, and the size to build."""

    part: Part
    first: int
    last: int
    plan: EpochPlan
    types: IndexTypes

    @classmethod
    def of(cls, part: Part, settings: OrderSettings, name: str) -> _Planned:
        data = part.pair.data
        data.check_every_entry()
        first, last = part.source.documents(len(data))
        tokens = data.tokens_of(first, last)
        if tokens < settings.sequence_length + 1:
            raise too_small(name, data.prefix, last - first, len(data), tokens, settings.sequence_length)
        threshold = settings.separate_last_epoch_threshold
        plan = plan_epochs(tokens, settings.sequence_length, part.samples, threshold)
        return cls(part, first, last, plan, index_types(first, last, data.lengths, plan))

    def build(self, settings: OrderSettings) -> SampleOrder:
        lengths = self.part.pair.data.lengths
        return build_order(self.first, self.last, lengths, self.plan, settings.sequence_length, settings.seed)

    @property
    def documents(self) -> int:
        return self.plan.epochs * (self.last - self.first)


def _arrays(order: SampleOrder) -> Arrays:
    return {"document": order.document_index, "sample": order.sample_index, "shuffle": order.shuffle_index}


def _build_blend(
    parts: Sequence[Part], weights: Sequence[float], samples: int, settings: OrderSettings, name: str
) -> Arrays:
    planned = [_Planned.of(part, settings, name) for part in parts]
    dataset, place = indices.blend_order(weights, samples)
    _refuse_more_than_there_is(dataset, [one.plan.samples for one in planned], name)
    ends = np.cumsum([(one.documents, one.plan.samples + 1, one.plan.samples) for one in planned], axis=0)
    types = [one.types for one in planned]
    built: Arrays = {
        "source": np.array([(one.first, one.last, one.plan.tokens_per_epoch) for one in planned], np.int64),
        "end": ends.astype(np.int64),
        "document": np.empty(ends[-1, 0], np.result_type(*(one.document for one in types))),
        "sample": np.empty((ends[-1, 1], 2), np.result_type(*(one.sample for one in types))),
        "shuffle": np.empty(ends[-1, 2], np.result_type(*(one.shuffle for one in types))),
    }
    for one, whole in zip(planned, _cut(built), strict=True):
        for name_, array in _arrays(one.build(settings)).items():
            _arrays(whole.order)[name_][:] = array
    return {**built, "dataset": dataset, "place": place}


def _cut(arrays: Arrays) -> list[PartOrder]:
    """Return the parts of a blend's arrays, as views; empty for empty arrays."""
    found, starts = [], (0, 0, 0)
    for (first, last, tokens, *_), ends in zip(arrays["source"].tolist(), arrays["end"].tolist(), strict=True):
        ranges: list[slice[Any, Any, Any]] = [slice(*both) for both in zip(starts, ends, strict=True)]
        order = SampleOrder(*(arrays[name][one] for name, one in zip(_NAMES, ranges, strict=True)))
        found.append(PartOrder(first, last, tokens, order))
        starts = ends
    return found


_NAMES = ("document", "sample", "shuffle")


def _refuse_more_than_there_is(dataset: NDArray[np.int16], has: Sequence[int], name: str) -> None:
    used = np.bincount(dataset, minlength=len(has)).tolist()
    for number, (count, most) in enumerate(zip(used, has, strict=True), 1):
        if count > most:
            raise DataError(f"the {name} blend needs {count:,} samples of its source {number}, which has {most:,}")


__all__ = ["DataError", "Dataset", "Datasets", "build_datasets", "vocab_size"]


@dataclass(frozen=True)
class Datasets:
    """The datasets of all splits. train: None if no training samples were requested.

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
    cache: Callable[[list[Path]], IndexCache] | None = None,
) -> Datasets:
    """Build datasets of at least so many samples each (each validation set has `valid_samples`); 0 omits a split.

    Every rank calls it. The rank with `is_builder` builds the sample orders and saves them as files. The others wait
    once in `barrier` and then map them. cache: makes the cache, from folders. Raises DataError, on all ranks alike.
    """

    def datasets() -> Datasets:
        builder = _Builder(options, cache or (lambda folders: IndexCache(folders, is_builder)))
        train = builder.datasets("train", train_samples)
        return Datasets(
            next(iter(train.values()), None),
            builder.datasets("valid", valid_samples),
            builder.datasets("test", test_samples),
        )

    if not is_builder:
        barrier()
        return datasets()
    try:
        return datasets()
    finally:
        barrier()


class _Builder:
    """A builder of datasets that identifies each pair of files once."""

    def __init__(self, options: Mapping[str, Any], cache: Callable[[list[Path]], IndexCache]) -> None:
        self._options, self._make_cache = options, cache
        self._settings = OrderSettings(options["seq_length"], options["seed"], options["separate_last_epoch_threshold"])
        self._pairs: dict[str, Pair] = {}

    def datasets(self, split: str, samples: int) -> dict[str, Dataset]:
        """Return the datasets of `split` by name."""
        if samples <= 0:
            return {}
        return {group.name: self._dataset(group, split, samples) for group in groups(self._options, split)}

    def _dataset(self, group: Group, split: str, samples: int) -> Dataset:
        cache = self._cache(group.sources[0])
        if len(group.sources) == 1 and group.sources[0].weight is None:
            (part,) = parts = [self._part(group.sources[0], samples)]
            over = self._over(parts, [order_alone(part, self._settings, cache, split)])
            found: Dataset = over[0]
        else:
            weights = indices.normalized([source.weight or 0.0 for source in group.sources])
            sizes = sizes_to_build(weights, samples)
            parts = [self._part(source, size) for source, size in zip(group.sources, sizes, strict=True)]
            total = sum(target_sizes(weights, samples))
            name = split if group.name == split else f"{split} ({group.name})"
            # Normalise again, as Megatron does: the last bits of the weights decide between equals.
            weights = indices.normalized(weights)
            whole = order_blend(parts, weights, total, self._settings, cache, name)
            over = self._over(parts, whole.parts)
            found = BlendedDataset(over, weights, whole)
        if split == "valid":
            self._refuse_fewer_than_asked(group.name, over)
        return found

    def _over(self, parts: Sequence[Part], orders: Sequence[PartOrder]) -> list[GPTDataset]:
        """Return the datasets; empty without orders, which a dry run does not build."""
        return [
            GPTDataset(part.pair, order, self._settings.sequence_length)
            for part, order in zip(parts, orders, strict=bool(orders))
        ]

    def _refuse_fewer_than_asked(self, name: str, sources: Sequence[GPTDataset]) -> None:
        has = sum(samples_of_one_pass(one.tokens_per_epoch, one.sequence_length) for one in sources)
        if 0 < has < asked_samples(self._options):
            raise fewer_than_asked(name, has, self._options)

    def _part(self, source: Source, samples: int) -> Part:
        pair = self._pairs.setdefault(source.prefix, Pair(source.prefix))
        return Part(pair, source, samples)

    def _cache(self, source: Source) -> IndexCache:
        given = self._options.get("data_cache_path")
        folders = [Path(given)] if given else [Path(source.prefix).absolute().parent / "cache"]
        if not given and self._options.get("save"):
            folders.append(Path(self._options["save"]) / "data-cache")
        return self._make_cache(folders)
