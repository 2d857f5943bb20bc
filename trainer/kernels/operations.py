"""Which kernels a process computes with, family by family, and why these."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.kernels.activation import ActivationKernels
from trainer.kernels.adam import AdamKernels
from trainer.kernels.attention import CausalAttention
from trainer.kernels.causal_attention import AttentionKernels
from trainer.kernels.cross_entropy import CrossEntropyKernels
from trainer.kernels.normalization import Norms
from trainer.kernels.residual import ResidualKernels
from trainer.kernels.softmax import SoftmaxKernels


@dataclass(frozen=True)
class Path:
    """Who computes a family of operations (`torch`, `C++`, `CUDA`, `flash-attn` ...), and why, in a few words."""

    family: str
    by: str
    why: str


@dataclass(frozen=True)
class Operations:
    """The kernels of each family; None where torch computes it.

    paths: who does, and why. notes: what was there to choose by, or from, and was not taken up.
    """

    norms: Norms | None = None
    activations: ActivationKernels | None = None
    residuals: ResidualKernels | None = None
    attention: AttentionKernels | None = None
    softmax: SoftmaxKernels | None = None
    core_attention: CausalAttention | None = None
    cross_entropy: CrossEntropyKernels | None = None
    adam: AdamKernels | None = None
    paths: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


#: Everything by torch, whatever there is.
BY_TORCH = Operations()
