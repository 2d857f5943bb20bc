"""The choice of the implementation of causal attention, and the implementations that we call with q, k and v.

scaled_dot_product_attention has no ALiBi, so the model gives it extra features (`trainer.model.attention`). They cost
up to a fifth and can push a head over its next size. Implementations with slopes of their own are preferred.

Shapes: b batch, n heads of this rank, s sequence, d head size. Slopes are those of this rank's heads, cut out of those
of all heads of the model. Source of ALiBi: Press et al., arXiv 2108.12409.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.core.dtypes import DTYPES
from trainer.kernels.cuda.softmax import CudaSoftmax
from trainer.kernels.softmax import SoftmaxKernels, scaled_softmax
from trainer.recipe.activations import MOST_SOFTMAX_SEQUENCE, alibi_feature_count
from trainer.recipe.model_options import head_size_of, masks_attention, precision_of
from trainer.recipe.options import Options

#: The implementations, by the names in options and messages.
TORCH, CPP, FLASH, SOFTMAX = "torch", "C++", "flash-attn", "softmax"


@dataclass(frozen=True)
class AttentionFacts:
    """The facts that decide the choice.

    capability: of the GPU, None on a CPU. alibi_features: extra ones for scaled_dot_product_attention, 0 without ALiBi.
    masked: a token may attend to fewer keys than all up to its own. has_*: installed, loaded or built.
    """

    capability: tuple[int, int] | None
    dtype: torch.dtype
    head_size: int
    sequence: int
    alibi_features: int = 0
    dropout: bool = False
    masked: bool = False
    has_cpp: bool = False
    has_flash: bool = False
    has_softmax: bool = False


_HALVES = (torch.float16, torch.bfloat16)
_AMPERE = (8, 0)
#: The largest heads that FlashAttention 2 has kernels for, as torch's own flash attention has.
_MOST_FLASH_HEAD = 256


def refuses(by: str, facts: AttentionFacts) -> str | None:
    """Return why an implementation cannot compute attention here, or None."""
    if by == TORCH:
        return None
    if facts.dropout:
        return "attention's dropout draws its masks in torch"
    if facts.masked:
        return "a window and documents that are kept apart are masks in torch"
    if by == CPP:
        if facts.capability is not None:
            return "C++ is for the CPU"
        return None if facts.has_cpp else "the library of operations is not built: opsctl kernels build"
    if facts.capability is None:
        return "needs a GPU"
    if by == SOFTMAX:
        if not facts.has_softmax:
            return "the softmax kernels are not built for this GPU: opsctl kernels build"
        return CudaSoftmax.refuses(facts.sequence)
    if not facts.has_flash:
        return "flash-attn is not installed"
    if facts.capability < _AMPERE:
        return f"needs compute capability 8.0, and this GPU has {'.'.join(map(str, facts.capability))}"
    if facts.dtype not in _HALVES:
        return f"flash-attn has no kernels for {facts.dtype}"
    if facts.head_size > _MOST_FLASH_HEAD or facts.head_size % 8:
        return f"heads of {facts.head_size}, where flash-attn takes multiples of 8 up to {_MOST_FLASH_HEAD}"
    return None


def attention_choice(facts: AttentionFacts, asked: str | None = None) -> tuple[str, str]:
    """Return the implementation of attention and the reason. Raises ValueError if `asked` cannot be used."""
    if asked is not None:
        if why_not := refuses(asked, facts):
            raise ValueError(f"attention by {asked}: {why_not}")
        return asked, "asked for"
    if facts.capability is None or facts.dropout or facts.masked:
        why_not = refuses(CPP, facts)
        return (TORCH, why_not) if why_not else (CPP, "on a CPU")
    if not facts.alibi_features:
        return TORCH, "scaled_dot_product_attention, without ALiBi"
    without_flash = refuses(FLASH, facts)
    if not without_flash:
        return FLASH, "carries ALiBi's slopes"
    by_features = f"ALiBi as {facts.alibi_features} features"
    # torch has flash attention for heads with ALiBi's features.
    if (
        facts.capability >= _AMPERE
        and facts.dtype in _HALVES
        and facts.head_size + facts.alibi_features <= _MOST_FLASH_HEAD
    ):
        return TORCH, f"{by_features}: {without_flash}"
    if facts.sequence > MOST_SOFTMAX_SEQUENCE:
        most = f"{facts.sequence}, where {MOST_SOFTMAX_SEQUENCE} is the most"
        return TORCH, f"{by_features}: weights kept for a sequence of {most}"
    if without_softmax := refuses(SOFTMAX, facts):
        return TORCH, f"{by_features}: {without_softmax}"
    return SOFTMAX, f"no flash attention with ALiBi here: {without_flash}"


def attention_facts(options: Options, device: torch.device, has_cpp: bool, has_softmax: bool) -> AttentionFacts:
    """Return the facts of a training with these options on `device`. Packages are searched, not imported."""
    head_size = head_size_of(options)
    return AttentionFacts(
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
        dtype=DTYPES[precision_of(options)],
        head_size=head_size,
        sequence=options.seq_length,
        alibi_features=alibi_feature_count(head_size) if options.position_embedding_type == "alibi" else 0,
        dropout=options.attention_dropout > 0,
        masked=masks_attention(options),
        has_cpp=has_cpp,
        has_flash=importlib.util.find_spec("flash_attn") is not None,
        has_softmax=has_softmax,
    )


def core_attention(by: str, softmax: SoftmaxKernels | None) -> CausalAttention | None:
    """Return `Operations.core_attention` for a choice; None if the model or C++ computes it."""
    if by == SOFTMAX:
        return SoftmaxAttention(softmax)
    return FlashAttention() if by == FLASH else None


class CausalAttention(Protocol):
    """softmax(scale * q @ k.T + slope * (key - query), keys up to the query) @ v, with gradients by autograd."""

    def __call__(
        self, q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor, slopes_n: Tensor | None, scale: float, /
    ) -> Tensor:
        """out_bnsd in the dtype of q. slopes_n: fp32, on the device of q; None without ALiBi."""


@dataclass(frozen=True)
class SoftmaxAttention:
    """Two products with the softmax kernels between them; None for kernels: torch's softmax."""

    kernels: SoftmaxKernels | None

    def __call__(self, q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor, slopes_n: Tensor | None, scale: float) -> Tensor:
        """As `CausalAttention`."""
        b, n, s, _ = q_bnsd.shape
        q, k = q_bnsd.flatten(0, 1), k_bnsd.flatten(0, 1)
        # Scaled before they are rounded to 16 bits, where sums of products may be too great for fp16.
        scores = torch.baddbmm(q.new_zeros(()), q, k.mT, beta=0, alpha=scale).view(b, n, s, k.shape[1])
        return scaled_softmax(scores, None, 1.0, slopes_n, True, self.kernels) @ v_bnsd


class FlashAttention:
    """FlashAttention 2, which has a bias of -slope * |query - key|."""

    def __init__(self) -> None:
        self._attention: Callable[..., Tensor] = importlib.import_module("flash_attn").flash_attn_func

    def __call__(self, q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor, slopes_n: Tensor | None, scale: float) -> Tensor:
        """As `CausalAttention`."""
        q_bsnd, k_bsnd, v_bsnd = (one.transpose(1, 2) for one in (q_bnsd, k_bnsd, v_bnsd))
        mixed = self._attention(q_bsnd, k_bsnd, v_bsnd, softmax_scale=scale, causal=True, alibi_slopes=slopes_n)
        return mixed.transpose(1, 2)


class AttentionKernels(Protocol):
    """Kernels for attention. Tensors may have any strides if the numbers of a head are contiguous."""

    def forward(
        self, q_bsgmd: Tensor, k_bsgd: Tensor, v_bsgd: Tensor, slopes_n: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """(out_bsgmd, contiguous, and the logs of the softmax's sums, fp32 [b, g * m, s]).

        Scores are scale * q @ k + slope * (key - query) for keys up to the query; slopes: fp32, of the heads in order.
        """

    def backward(
        self,
        gradient_bsgmd: Tensor,
        inputs: tuple[Tensor, Tensor, Tensor],
        out_bsgmd: Tensor,
        log_sums_bns: Tensor,
        slopes_n: Tensor | None,
        scale: float,
        gradients: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Write the gradients of q, k and v, whose shapes are those of `inputs`, every element of them."""


def attention_of_product(qkv_bsgxd: Tensor, slopes_n: Tensor | None, scale: float, kernels: AttentionKernels) -> Tensor:
    """Return out_bsgmd of a product in which each group has its m queries, its key and its value: x is m + 2."""
    out: Tensor = _OfProduct.apply(_with_rows(qkv_bsgxd), slopes_n, scale, kernels)
    return out


def attention(
    q_bsgmd: Tensor, k_bsgd: Tensor, v_bsgd: Tensor, slopes_n: Tensor | None, scale: float, kernels: AttentionKernels
) -> Tensor:
    """Return out_bsgmd of separate queries, keys and values."""
    inputs = (_with_rows(one) for one in (q_bsgmd, k_bsgd, v_bsgd))
    out: Tensor = _Apart.apply(*inputs, slopes_n, scale, kernels)
    return out


def _with_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with the numbers of a head contiguous."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _parts(qkv_bsgxd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return qkv_bsgxd[..., :-2, :], qkv_bsgxd[..., -2, :], qkv_bsgxd[..., -1, :]


class _OfProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, slopes: Tensor | None, scale: float, kernels: AttentionKernels) -> Tensor:
        out, log_sums = kernels.forward(*_parts(qkv), slopes, scale)
        ctx.save_for_backward(qkv, out, log_sums, slopes)
        ctx.scale, ctx.kernels = scale, kernels
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        qkv, out, log_sums, slopes = ctx.saved_tensors
        of_qkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
        gradient = _with_rows(gradients[0])
        ctx.kernels.backward(gradient, _parts(qkv), out, log_sums, slopes, ctx.scale, _parts(of_qkv))
        return of_qkv, None, None, None


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, scale: float, kernels: AttentionKernels
    ) -> Tensor:
        out, log_sums = kernels.forward(q, k, v, slopes, scale)
        ctx.save_for_backward(q, k, v, out, log_sums, slopes)
        ctx.scale, ctx.kernels = scale, kernels
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, out, log_sums, slopes = ctx.saved_tensors
        of_inputs = tuple(torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in (q, k, v))
        ctx.kernels.backward(_with_rows(gradients[0]), (q, k, v), out, log_sums, slopes, ctx.scale, of_inputs)
        return *of_inputs, None, None, None
