"""Whether a training of another length reads its data in another order than a checkpoint's: from headers and lengths.

A length that needs more passes over some file shuffles that file's documents and samples anew. The trainer compares
the orders themselves (`trainer.data.micro_batches`) once it has built them; this tells it beforehand, where it is sure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.data.data_check import tokens_of
from trainer.formats.data.data_sources import Source, groups
from trainer.formats.data.index_header import read_header
from trainer.recipe.lengths import End
from trainer.recipe.passes import EpochPlan, plan_epochs, sizes_to_build

#: The settings that a length follows from.
_LENGTH = ("train_samples", "train_iters", "train_tokens", "global_batch_size", "rampup_batch_size")
_THRESHOLD = "separate_last_epoch_threshold"
#: Of fewer samples, or of one document, another order may happen to begin alike.
_PLACES = 16
#: Of a part of a larger file nobody waits for the lengths to be added up.
_MOST_LENGTHS = 20_000_000


def shuffled_anew(manifest: Manifest, options: Mapping[str, Any]) -> str | None:
    """What changes the order of the samples, with both values; None where nothing does, or that is not to be told.

    Raises DataError where the data's headers cannot be read, and OSError.
    """
    order, settings = manifest.training.get("sample_order"), manifest.settings
    if not order or any(name not in settings for name in (*_LENGTH, _THRESHOLD)):
        return None
    before, now = (_samples_to_read(one, manifest) for one in ({**options, **settings}, options))
    thresholds = settings[_THRESHOLD], options[_THRESHOLD]
    if before is None or now is None or (before, thresholds[0]) == (now, thresholds[1]):
        return None
    (group,) = groups(options, "train")
    if len(group.sources) > 1 and "sources" not in order:
        return None  # the first places of a blend need not have any sample of the file that is shuffled anew
    asked = zip(group.sources, _sizes(group.sources, before), _sizes(group.sources, now), strict=True)
    for source, *sizes in asked:
        tokens = _tokens(source, max(sizes) * options["seq_length"] + 1)
        if tokens is None:
            continue
        plans = [plan_epochs(tokens, options["seq_length"], *one) for one in zip(sizes, thresholds, strict=True)]
        if min(one.samples for one in plans) >= _PLACES and _shuffles(plans[0]) != _shuffles(plans[1]):
            return f"{_said(plans[0])} -> {_said(plans[1])} over {source.prefix} for {before:,} -> {now:,} samples"
    return None


def _samples_to_read(options: Mapping[str, Any], manifest: Manifest) -> int | None:
    """What the trainer has built orders for; None where that followed from where its process began."""
    if options["train_tokens"] is not None:
        return None
    if options["train_iters"] is not None:
        batch = options["global_batch_size"]
        is_even = manifest.consumed_train_samples == manifest.iteration * batch
        if options["rampup_batch_size"] is not None or not is_even:
            return None
    return End.of(options).samples_to_read(manifest)


def _sizes(sources: Sequence[Source], samples: int) -> list[int]:
    """Samples that are built of each source."""
    weights = [source.weight for source in sources]
    if weights == [None]:
        return [samples]
    in_all = math.fsum(weight or 0.0 for weight in weights)
    return sizes_to_build([(weight or 0.0) / in_all for weight in weights], samples)


def _tokens(source: Source, enough: int) -> int | None:
    """Tokens of a source, or `enough` and more; None for one document, and where the lengths are too many to add up."""
    header = read_header(source.prefix)
    first, last = source.documents(header.sequences)
    if last - first < 2:
        return None
    if (first, last) == (0, header.sequences):
        return header.tokens
    return tokens_of(header, first, last, enough) if last - first <= _MOST_LENGTHS else None


def _shuffles(plan: EpochPlan) -> tuple[int, bool]:
    """All of a plan that its shuffles depend on."""
    return plan.epochs, plan.separate_last_epoch


def _said(plan: EpochPlan) -> str:
    passes = f"{plan.epochs} pass{'es' if plan.epochs > 1 else ''}"
    return f"{passes}, the last apart" if plan.separate_last_epoch else passes
