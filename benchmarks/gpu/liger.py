"""Liger's Triton kernels as the table's cases call them, if liger-kernel is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from torch import Tensor

_EPSILON = 1e-5


def by_liger() -> dict[str, Callable[..., Any]]:
    """Case's name -> the operation on the case's buffers. Cross entropy waits for the GPU, which its time includes."""
    if importlib.util.find_spec("liger_kernel") is None:
        return {}
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
    from liger_kernel.ops.geglu import LigerGELUMulFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction, layer_norm_backward
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    def cross_entropy(logits: Tensor, labels: Tensor, _share: Tensor) -> Any:
        return LigerCrossEntropyFunction.apply(logits.detach().requires_grad_(), labels, None)

    def linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Any:
        return LigerFusedLinearCrossEntropyFunction.apply(x, weight, labels)[0]

    return {
        "LayerNorm forward": lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, _EPSILON),
        "LayerNorm backward": layer_norm_backward,
        "RMSNorm forward": lambda x, weight, _: LigerRMSNormFunction.apply(x, weight, _EPSILON),
        "SwiGLU forward": LigerSiLUMulFunction.apply,
        "GeGLU forward": LigerGELUMulFunction.apply,
        "cross entropy": cross_entropy,
        "linear + cross entropy": linear_cross_entropy,
    }
