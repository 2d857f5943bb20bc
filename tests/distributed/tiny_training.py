"""A training small enough for tests, run inside ranks: what the layout, model and checkpoint tests compare."""

from __future__ import annotations

from typing import Any

TINY = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "seq_length": 16,
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "lr": 3e-3,
    "train_iters": 20,
    "vocab_size": 64,
    "make_vocab_size_divisible_by": 4,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "weight_decay": 0.1,
}


def tiny_options(world_size: int, **changes: Any) -> Any:
    """Options of the tiny model; `changes` by key (tensor_model_parallel_size=2, bf16=True, ...)."""
    from trainer.recipe.options import parse, to_arguments

    return parse(to_arguments({**TINY, **changes}), world_size)


def tiny_engine(**changes: Any) -> tuple[Any, Any, Any]:
    """(options, parallel, engine) in a rank."""
    import os

    from trainer.engine.build import Vocabulary, build_engine, initialize

    options = tiny_options(int(os.environ["WORLD_SIZE"]), **changes)
    parallel = initialize(options)
    return options, parallel, build_engine(options, parallel, Vocabulary.of(options.vocab_size, options))


def step_items(options: Any, parallel: Any, step: int, training: bool = True) -> list[Any]:
    """Return this replica's micro-batches of a step of full batches."""
    return batch_items(options, parallel, step * options.global_batch_size, options.global_batch_size, training)


def batch_items(options: Any, parallel: Any, consumed_samples: int, batch: int, training: bool = True) -> list[Any]:
    """Return this replica's micro-batches of the next `batch` samples, with ids from their indices."""
    import torch

    from trainer.model.dropout import has_dropout
    from trainer.model.pipeline import engine_item

    size = options.micro_batch_size
    items = []
    for first in range(parallel.data_rank * size, batch, size * parallel.data_size):
        rows = []
        for sample in range(consumed_samples + first, consumed_samples + first + size):
            generator = torch.Generator().manual_seed(sample)
            start, stride = torch.randint(0, options.vocab_size, (2,), generator=generator).tolist()
            rows.append((torch.arange(options.seq_length + 1) * (stride % 5 + 1) + start) % options.vocab_size)
        place = consumed_samples + first if has_dropout(options) and training else None
        end_of_document = 7 if options.eod_mask_loss else None
        items.append(engine_item(torch.stack(rows), end_of_document, first_sample=place))
    return items


def train(steps: int, changes: dict[str, Any]) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step, in a rank."""
    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**changes)
    measured = []
    for step in range(steps):
        items = iter(step_items(options, parallel, step)) if parallel.needs_data else None
        result = train_step(engine, items, options.lr)
        measured.append((result.loss, result.gradient_norm))
    return measured
