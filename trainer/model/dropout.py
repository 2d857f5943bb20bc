"""Dropout without hidden state: each sample's mask follows from the seed, its place in the training, layer and spot.

So a resumed training and the recomputation of a checkpointed block draw the masks that were drawn before, and neither
the ranks' layout nor the size of the micro-batch has a say in them. A CPU and a GPU draw other numbers from one seed.

Shapes: b samples of a micro-batch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.parallel.initialization import seed_of

# A number of 16 bits says whether one value is dropped: four come from each that is drawn, and probabilities are whole
# multiples of 2^-16.
_LEVELS = 1 << 16


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

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.sample = 0

    @contextlib.contextmanager
    def at(self, sample: int) -> Iterator[None]:
        """Work on the micro-batch that begins with `sample`, then on what was before."""
        before, self.sample = self.sample, sample
        try:
            yield
        finally:
            self.sample = before

    def seed_of(self, row: int, layer: int, spot: str, head: int = 0) -> int:
        """The seed of one mask: of the micro-batch's sample `row`, at one spot of a layer, for a head of the model."""
        return seed_of(self.seed, self.sample + row, layer, spot, head)


def dropout(
    x_b: Tensor,
    probability: float,
    training: bool,
    clock: DropoutClock,
    layer: int,
    spot: str,
    part: tuple[int, int] = (0, 1),
) -> Tensor:
    """Dropout of a tensor [b, ...]: of each whole sample, or of its slice `part` as `keeping_masks` has it."""
    if not training or probability == 0:
        return x_b
    seeds = [clock.seed_of(row, layer, spot) for row in range(len(x_b))]
    return drop(x_b, keeping_masks(seeds, x_b.shape[1:], probability, x_b.device, part), probability)


def keeping_masks(
    seeds: Sequence[int],
    shape: Sequence[int],
    probability: float,
    device: torch.device,
    part: tuple[int, int] = (0, 1),
) -> Tensor:
    """[seeds, *shape], true where a value is kept; each seed's mask by itself. Does not wait for a GPU.

    part: (which, of how many) slices of the first dimension `shape` is; all of them are drawn, as no slice comes alone.
    """
    which, slices = part
    size = math.prod(shape)
    drawn = torch.empty(len(seeds), -(-size * slices // 4), dtype=torch.int64, device=device)
    generator = torch.Generator(device)
    for row, seed in enumerate(seeds):
        drawn[row].random_(-(1 << 63), None, generator=generator.manual_seed(seed))  # all 64 bits
    levels = drawn.view(torch.int16)[:, which * size : (which + 1) * size]
    return (levels >= _dropped_levels(probability) - _LEVELS // 2).reshape(len(seeds), *shape)


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the device's own generator, which a fused kernel draws its masks from."""
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def drop(x: Tensor, mask: Tensor, probability: float) -> Tensor:
    """x where `mask` is true, scaled so that its expectation stays, and 0 elsewhere. Backward needs the mask alone."""
    dropped: Tensor = _Drop.apply(x, mask, _LEVELS / (_LEVELS - _dropped_levels(probability)))
    return dropped


def _dropped_levels(probability: float) -> int:
    return min(max(round(probability * _LEVELS), 1), _LEVELS - 1)


class _Drop(torch.autograd.Function):
    """scale * mask * x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return (x * mask).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return (gradients[0] * mask).mul_(ctx.scale), None, None
