"""Which parameters decay, and the optimizer over them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.kernels.adam import AdamKernels
from trainer.optim.fused_adam import FusedAdam
from trainer.recipe.options import Options


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: what decays, and what does not, as the table of parameters says. Each has its parameters' `names`."""
    decaying: dict[str, nn.Parameter] = {}
    fixed: dict[str, nn.Parameter] = {}
    for name, parameter in module.named_parameters():
        (decaying if parameter.decays else fixed)[name] = parameter  # type: ignore[attr-defined]
    groups = (("decay", weight_decay, decaying), ("no_decay", 0.0, fixed))
    return [
        {"params": list(found.values()), "names": list(found), "name": label, "weight_decay": decay}
        for label, decay, found in groups
        if found
    ]


def build_optimizer(module: nn.Module, options: Options, kernels: AdamKernels | None) -> torch.optim.Optimizer:
    """AdamW by `kernels` or torch, or SGD, over the module's groups. The learning rate is the loop's to set."""
    groups = parameter_groups(module, options.weight_decay)
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.sgd_momentum)
    betas = (options.adam_beta1, options.adam_beta2)
    if kernels is None:
        return torch.optim.AdamW(groups, lr=options.lr, betas=betas, eps=options.adam_eps, fused=True)
    return FusedAdam(groups, kernels, lr=options.lr, betas=betas, eps=options.adam_eps)
