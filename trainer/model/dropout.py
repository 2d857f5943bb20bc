"""Dropout without hidden state: each sample's mask follows from the seed, its place in the training, layer and spot.

So a resumed training and the recomputation of a checkpointed block draw the masks that were drawn before, and neither
the ranks' layout nor the size of the micro-batch has a say in them, nor what they are drawn on
(`trainer.kernels.residual`).

Shapes: b samples of a micro-batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from trainer.kernels.residual import Dropped
from trainer.parallel.initialization import seed_of


class DropoutRates(Protocol):
    """The source of the dropout rates: a model's shape, or the options."""

    @property
    def hidden_dropout(self) -> float:
        """Probability for the embedding and for what attention and MLP add to the residual stream."""

    @property
    def attention_dropout(self) -> float:
        """Probability for the attention's weights."""


def has_dropout(rates: DropoutRates) -> bool:
    """Return whether training draws any mask, so that micro-batches need their place in the training."""
    return rates.hidden_dropout > 0 or rates.attention_dropout > 0


class DropoutClock:
    """The present micro-batch: `sample` is the index in the training of its first sample.

    starts_bs: for each token the index of its document's first one; None where documents are not kept apart. masks:
    those of attention that follow from it, by type, for all layers.
    One clock is shared by all layers of a rank; the pipeline sets it before each forward pass and each recomputation.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.sample = 0
        self.starts_bs: Tensor | None = None
        self.masks: dict[torch.dtype, Tensor] = {}

    @contextlib.contextmanager
    def at(self, sample: int, starts_bs: Tensor | None = None) -> Iterator[None]:
        """Work on the micro-batch that begins with `sample`, then on what was before."""
        before = self.sample, self.starts_bs, self.masks
        self.sample, self.starts_bs, self.masks = sample, starts_bs, {}
        try:
            yield
        finally:
            self.sample, self.starts_bs, self.masks = before

    def seed_of(self, row: int, layer: int, spot: str, head: int = 0) -> int:
        """Return the seed of one mask: of the micro-batch's sample `row`, at a spot of a layer, for a head of the
        model.
        """
        return seed_of(self.seed, self.sample + row, layer, spot, head)


def dropped_at(
    spot: str,
    x_b: Tensor,
    probability: float,
    training: bool,
    clock: DropoutClock,
    layer: int,
    part: tuple[int, int] = (0, 1),
) -> Dropped | None:
    """Return the dropout of a tensor [b, ...] at a spot of a layer: of each whole sample, or of its slice `part`."""
    if not training or probability == 0:
        return None
    return Dropped([clock.seed_of(row, layer, spot) for row in range(len(x_b))], probability, part)


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the device's own generator, which a fused kernel draws its masks from."""
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
