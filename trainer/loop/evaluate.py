"""Evaluation of every validation group in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.data.build import Dataset
from trainer.engine import evaluate_step
from trainer.loop.batches import open_items
from trainer.parallel.process_groups import Parallel
from trainer.recipe.options import Options


@dataclass(frozen=True)
class Evaluation:
    """Mean loss by group, and how long all of it took."""

    losses: dict[str, float]
    milliseconds: float


def evaluate(
    engine: PipelineEngine,
    groups: Mapping[str, Dataset],
    consumed_samples: int,
    options: Options,
    parallel: Parallel,
    vocab_size: int,
    end_of_document: int | None,
) -> Evaluation:
    """--eval-iters full global batches of each group, from sample `consumed_samples` on. Collective.

    A group that has fewer samples left than that begins again.
    """
    started = time.monotonic()
    wanted = options.eval_iters * options.global_batch_size
    micro_batches = options.global_batch_size // (options.micro_batch_size * parallel.data_size)
    losses = {}
    for name, dataset in groups.items():
        first = consumed_samples if consumed_samples + wanted <= len(dataset) else 0
        items = open_items(dataset, first, options, parallel, vocab_size, end_of_document, for_training=False)
        try:
            steps = [evaluate_step(engine, items, micro_batches) for _ in range(options.eval_iters)]
        finally:
            if items is not None:
                items.close()
        losses[name] = math.fsum(steps) / len(steps) if all(map(math.isfinite, steps)) else math.nan
    return Evaluation(losses, (time.monotonic() - started) * 1000)
