"""Adam over flat buffers, and the sum of squares of all gradients before it.

Source: Loshchilov and Hutter, arXiv 1711.05101 (decay apart from the gradient), as torch.optim.AdamW computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class AdamSettings:
    """The settings of one group of parameters in one step; `step` counts from 1."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    step: int


@dataclass(frozen=True)
class AdamBuffers:
    """One flat piece of parameters: all of n elements, contiguous.

    weight, first and second moment are fp32 and changed in place. gradient: fp32, fp16 or bf16. half: fp16 or bf16,
    where the rounded weight goes, or None.
    """

    weight: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    half: Tensor | None = None


class AdamKernels(Protocol):
    """Kernels for Adam."""

    def step(self, buffers: Sequence[AdamBuffers], settings: AdamSettings, scale: Tensor | float = 1.0) -> None:
        """Update all buffers. Each gradient is multiplied by `scale`: 1 / loss scale and clipping in one number."""

    def squares(self, gradients: Sequence[Tensor]) -> Tensor:
        """fp64 [1] on the gradients' device: the sum of all squares, no finite number where a gradient is none.

        The sum's order depends on the sizes alone. Does not wait for a GPU.
        """
