"""The orders in which files are read: one file's by itself, or those of all files of a blend as one kept set of arrays.

A blend of thousands of files so takes as many looks to find again as one of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data import blend
from trainer.data.index_cache import Arrays, IndexCache
from trainer.data.indices import IndexTypes, SampleOrder, build_order, index_types
from trainer.data.pair import Pair
from trainer.formats.data.data_check import too_small
from trainer.formats.data.data_sources import Source
from trainer.formats.errors import DataError
from trainer.recipe.passes import EpochPlan, plan_epochs


@dataclass(frozen=True)
class OrderSettings:
    """What the order of samples depends on besides the data."""

    sequence_length: int
    seed: int
    separate_last_epoch_threshold: float


@dataclass(frozen=True)
class Part:
    """What a data set takes of one pair of files: `samples` at least of a range of documents, or one epoch (None)."""

    pair: Pair
    source: Source
    samples: int | None


@dataclass(frozen=True)
class PartOrder:
    """The order in which sequences [first, last) of a pair are read. tokens: in them, None where nobody has counted."""

    first: int
    last: int
    tokens: int | None
    order: SampleOrder


@dataclass(frozen=True)
class BlendOrder:
    """dataset_index, dataset_sample_index: [samples], which part serves each place, and which of its places."""

    parts: list[PartOrder]
    dataset_index: NDArray[np.int16]
    dataset_sample_index: NDArray[np.int64]


def order_alone(part: Part, settings: OrderSettings, cache: IndexCache, name: str) -> PartOrder:
    """The order of one file's samples, kept or built. `name` is for messages. Raises DataError."""
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
    """The orders of all files of a blend and of the blend itself; `weights` add up to one. Raises DataError."""
    if len(parts) > blend.MOST_DATASETS:
        raise DataError(f"the {name} blend has {len(parts):,} sources, and {blend.MOST_DATASETS:,} are the most")
    # As texts: thousands of nested dictionaries take a second to describe.
    sources = [f"{part.samples} samples of {part.source.start}:{part.source.end} of {part.pair.told}" for part in parts]
    description = {"weights": [weight.hex() for weight in weights], "sources": sources, "settings": vars(settings)}
    arrays = cache.load_or_build(
        {"what": "blend of GPT sample orders", "version": 1, "samples": samples, **description},
        lambda: _build_blend(parts, weights, samples, settings, name),
    )
    return BlendOrder(_cut(arrays), arrays["dataset"], arrays["place"])


@dataclass(frozen=True)
class _Planned:
    """A part of which every entry was checked, and what is to be built of it."""

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
    dataset, place = blend.blend_order(weights, samples)
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
    """The parts of a blend's arrays, as views. None of arrays that are empty."""
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
            raise DataError(f"the {name} blend asks for {count:,} samples of its source {number}, which gives {most:,}")
