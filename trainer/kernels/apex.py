"""NVIDIA's apex, where it is installed: its norms and its Adam on a GPU for which ours are not built.

PyPI's `apex` is another project. NVIDIA's is built from github.com/NVIDIA/apex with its CUDA extensions, which are
modules of their own next to the package. It is imported only where it is used.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from trainer.kernels.adam import AdamBuffers, AdamSettings
from trainer.kernels.normalization import NormFunction

#: Attribute of Operations -> the extension that has it.
_EXTENSIONS = {"norms": "fused_layer_norm_cuda", "adam": "amp_C"}
APEX_COMPUTES = frozenset(_EXTENSIONS)
NOT_INSTALLED = "apex is not installed"
_DECAY_APART = 1  # amp_C's mode for Loshchilov and Hutter's AdamW


class ApexMissing(RuntimeError):
    """The reason why apex is not used."""


def apex_kernels(attribute: str) -> NormFunction | ApexAdam:
    """Return apex's implementation for one of `APEX_COMPUTES`. Raises ApexMissing, also if it does not load."""
    found = importlib.util.find_spec("apex")
    if found is None:
        raise ApexMissing(NOT_INSTALLED)
    folders = found.submodule_search_locations or ()
    if not any((Path(folder) / "multi_tensor_apply").is_dir() for folder in folders):
        raise ApexMissing("the installed apex is PyPI's project of that name, not NVIDIA's")
    if importlib.util.find_spec(_EXTENSIONS[attribute]) is None:
        raise ApexMissing(f"NVIDIA's apex was installed without its extension {_EXTENSIONS[attribute]}")
    try:
        return apex_norms() if attribute == "norms" else ApexAdam()
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise ApexMissing(f"apex does not load: {' '.join(str(error).split())}") from None


def apex_norms() -> NormFunction:
    """Return apex's LayerNorm and RMSNorm with their gradients. Raises ImportError and AttributeError."""
    module: Any = importlib.import_module("apex.normalization.fused_layer_norm")
    layer_norm, rms_norm = module.fused_layer_norm_affine, module.fused_rms_norm_affine

    def compute(x: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool) -> Tensor:
        if rms:
            return cast(Tensor, rms_norm(x, weight_h, weight_h.shape, epsilon))
        # apex has no LayerNorm with a weight and no bias.
        shift = torch.zeros_like(weight_h) if bias_h is None else bias_h
        return cast(Tensor, layer_norm(x, weight_h, shift, weight_h.shape, epsilon))

    return NormFunction(compute)


class ApexAdam:
    """`AdamKernels` by what apex.optimizers.FusedAdam calls, in fp32; gradients are scaled and weights rounded beside.

    Raises ImportError and AttributeError.
    """

    def __init__(self) -> None:
        extension: Any = importlib.import_module(_EXTENSIONS["adam"])
        self._applier: Any = importlib.import_module("apex.multi_tensor_apply").multi_tensor_applier
        self._adam, self._norm = extension.multi_tensor_adam, extension.multi_tensor_l2norm

    def step(self, buffers: Sequence[AdamBuffers], settings: AdamSettings, scale: Tensor | float = 1.0) -> None:
        """One update of all buffers."""
        gradients = [_scaled(one.gradient, scale) for one in buffers]
        lists = [gradients, *([getattr(one, name) for one in buffers] for name in ("weight", "first", "second"))]
        self._applier(
            self._adam,
            _no_overflow(gradients[0]),
            lists,
            settings.learning_rate,
            settings.beta1,
            settings.beta2,
            settings.epsilon,
            settings.step,
            _DECAY_APART,
            True,  # both moments divided by what they lack at the beginning
            settings.weight_decay,
        )
        for one in buffers:
            if one.half is not None:
                one.half.copy_(one.weight)

    def squares(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the sum of all squares, fp64 [1]."""
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for one in gradients:
            by_dtype.setdefault(one.dtype, []).append(one)
        norms = [self._applier(self._norm, _no_overflow(some[0]), [some], False)[0] for some in by_dtype.values()]
        return torch.stack([one.double().square().view(1) for one in norms]).sum(dim=0)


def _scaled(gradient: Tensor, scale: Tensor | float) -> Tensor:
    wide = gradient.float()
    return wide if isinstance(scale, float) and scale == 1.0 else wide * scale


def _no_overflow(beside: Tensor) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=beside.device)
