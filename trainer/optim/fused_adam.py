"""AdamW whose update is one pass of chosen kernels, with the groups and states of torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.kernels.adam import AdamBuffers, AdamKernels, AdamSettings
from trainer.recipe.options import Options


class FusedAdam(torch.optim.AdamW):
    """torch.optim.AdamW by `kernels`: equal up to rounding.

    Groups and states are AdamW's own, so a checkpoint of the one is the other's; but a step count that kernels have
    counted is on the host, where they want it. Parameters are contiguous.
    """

    def __init__(
        self,
        groups: Any,
        kernels: AdamKernels,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        self.kernels = kernels

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of each parameter that has a gradient. Raises ValueError for a closure."""
        if closure is not None:
            raise ValueError("FusedAdam takes no closure: call it and step() apart")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(group, parameter, [parameter.grad])
        return None

    @torch.no_grad()
    def update(
        self,
        group: dict[str, Any],
        parameter: Tensor,
        gradients: Sequence[Tensor],
        scale: Tensor | float = 1.0,
        half: Tensor | None = None,
    ) -> None:
        """One update by the kernels of a parameter of this group.

        gradients: those of its pieces from its beginning on, one behind the other; what lies behind the last stays as
        it is. Each is multiplied by `scale` as it is read. half: where the rounded weight goes, as large as it.
        """
        state = self._state_of(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        settings = AdamSettings(
            float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"], int(state["step"])
        )
        self.kernels.step(list(_pieces(parameter, state, gradients, half)), settings, scale)

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter, requires_grad=False)
            state["exp_avg_sq"] = torch.zeros_like(parameter, requires_grad=False)
        elif state["step"].device.type != "cpu":  # as torch's fused form keeps it, which a checkpoint may have been of
            state["step"] = state["step"].cpu()
        return state


def _pieces(
    parameter: Tensor, state: dict[str, Any], gradients: Sequence[Tensor], half: Tensor | None
) -> Iterator[AdamBuffers]:
    whole = [parameter.detach(), state["exp_avg"], state["exp_avg_sq"]]
    weight, first, second = (one.view(-1) for one in whole)
    half = None if half is None else half.view(-1)
    start = 0
    for gradient in gradients:
        part = slice(start, start + gradient.numel())
        own_half = None if half is None else half[part]
        yield AdamBuffers(weight[part], gradient.detach().reshape(-1), first[part], second[part], own_half)
        start = part.stop


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
