"""Dropout without hidden state: each mask follows from the seed, the sample's place in the training, layer and spot.

So a resumed training and the recomputation of a checkpointed block draw the masks that were drawn before, and ranks
that hold the same values draw the same masks, whatever else was drawn meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from trainer.parallel.initialization import seed_of


class DropoutRates(Protocol):
    """What says how much is dropped: a model's shape, or the options."""

    @property
    def hidden_dropout(self) -> float:
        """Probability for the embedding and for what attention and MLP add to the residual stream."""

    @property
    def attention_dropout(self) -> float:
        """Probability for the attention's weights."""


def has_dropout(rates: DropoutRates) -> bool:
    """Whether training draws any mask, so that micro-batches have to say where in the training they lie."""
    return rates.hidden_dropout > 0 or rates.attention_dropout > 0


class DropoutClock:
    """Which micro-batch the model is working on: `sample` is the index in the training of its first sample.

    One clock is shared by all layers of a rank; the pipeline sets it before each forward pass and each recomputation.
    """

    def __init__(self, seed: int, tensor_rank: int) -> None:
        self.seed = seed
        self.tensor_rank = tensor_rank
        self.sample = 0

    @contextlib.contextmanager
    def at(self, sample: int) -> Iterator[None]:
        """Work on the micro-batch that begins with `sample`, then on what was before."""
        before, self.sample = self.sample, sample
        try:
            yield
        finally:
            self.sample = before

    def seed_generator(self, device: torch.device, layer: int, spot: str, split: bool) -> None:
        """Seed the device's generator for one dropout. `split`: tensor-parallel ranks hold different values there."""
        seed = seed_of(self.seed, self.sample, layer, spot, self.tensor_rank if split else -1)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)


def dropout(x: Tensor, probability: float, training: bool, clock: DropoutClock, layer: int, spot: str) -> Tensor:
    """Dropout of a tensor that all tensor-parallel ranks hold whole."""
    if not training or probability == 0:
        return x
    clock.seed_generator(x.device, layer, spot, split=False)
    return torch.nn.functional.dropout(x, probability, training=True)
