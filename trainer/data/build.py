"""The trainer's datasets from its options. Without torch: what builds their order ahead needs none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data import blend
from trainer.data.gpt_dataset import BlendedDataset, Dataset, GPTDataset
from trainer.data.index_cache import IndexCache
from trainer.data.node_cache import NodeCache, expanded
from trainer.data.orders import OrderSettings, Part, PartOrder, order_alone, order_blend
from trainer.data.pair import Pair
from trainer.formats.data.data_check import asked_samples, fewer_than_asked, samples_of_one_pass
from trainer.formats.data.data_sources import Group, Source, groups
from trainer.formats.data.vocabulary_files import vocab_size
from trainer.formats.errors import DataError
from trainer.recipe.passes import sizes_to_build, target_sizes

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
    cache: Callable[[list[Path]], IndexCache] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Datasets:
    """Datasets of at least so many samples each (every validation set has `valid_samples`); 0 leaves a split out.

    Every rank calls it. The one with `is_builder` builds the sample orders and keeps them as files; the others wait in
    `barrier`, once for all of them, and map them. cache: makes what keeps them, of folders. say: told where files are
    not copied to a node's own disk although they should. Raises DataError, on every rank alike.
    """

    def datasets() -> Datasets:
        local = options.get("data_node_cache_path")
        node = NodeCache(expanded(local) if local else None, say)
        builder = _Builder(options, node, cache or (lambda folders: IndexCache(folders, is_builder, node)))
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
    """Tells each pair of files apart once and builds datasets over it."""

    def __init__(self, options: Mapping[str, Any], node: NodeCache, cache: Callable[[list[Path]], IndexCache]) -> None:
        self._options, self._node, self._make_cache = options, node, cache
        self._settings = OrderSettings(options["seq_length"], options["seed"], options["separate_last_epoch_threshold"])
        self._pairs: dict[str, Pair] = {}

    def datasets(self, split: str, samples: int) -> dict[str, Dataset]:
        """The datasets of `split` by name."""
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
            weights = blend.normalized([source.weight or 0.0 for source in group.sources])
            sizes = sizes_to_build(weights, samples)
            parts = [self._part(source, size) for source, size in zip(group.sources, sizes, strict=True)]
            total = sum(target_sizes(weights, samples))
            name = split if group.name == split else f"{split} ({group.name})"
            # Normalised once more, as Megatron does: the last bits of the weights decide between equals.
            weights = blend.normalized(weights)
            whole = order_blend(parts, weights, total, self._settings, cache, name)
            over = self._over(parts, whole.parts)
            found = BlendedDataset(over, weights, whole)
        if split == "valid":
            self._refuse_fewer_than_asked(group.name, over)
        return found

    def _over(self, parts: Sequence[Part], orders: Sequence[PartOrder]) -> list[GPTDataset]:
        """Without orders, which a dry run has not built, none."""
        return [
            GPTDataset(part.pair, order, self._settings.sequence_length)
            for part, order in zip(parts, orders, strict=bool(orders))
        ]

    def _refuse_fewer_than_asked(self, name: str, sources: Sequence[GPTDataset]) -> None:
        has = sum(samples_of_one_pass(one.tokens_per_epoch, one.sequence_length) for one in sources)
        if 0 < has < asked_samples(self._options):
            raise fewer_than_asked(name, has, self._options)

    def _part(self, source: Source, samples: int) -> Part:
        pair = self._pairs.setdefault(source.prefix, Pair(source.prefix, self._node))
        return Part(pair, source, samples)

    def _cache(self, source: Source) -> IndexCache:
        given = self._options.get("data_cache_path")
        folders = [Path(given)] if given else [Path(source.prefix).absolute().parent / "cache"]
        if not given and self._options.get("save"):
            folders.append(Path(self._options["save"]) / "data-cache")
        return self._make_cache(folders)
