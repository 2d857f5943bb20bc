"""Where DeepSpeed's optimizers add up the gradients of micro-batches, for who adds to it without autograd."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor, nn


class EngineAccumulation:
    """The `trainer.parallel.cross_entropy.Accumulation` of an engine's last stage and its output layer's weight.

    On that stage a micro-batch's backward pass follows its forward pass at once. All other gradients of the weight, and
    a step's end or its being dropped, find in these sums what autograd would have left there.
    """

    def __init__(self, engine: PipelineEngine, weight: nn.Parameter) -> None:
        self._engine, self._weight = engine, weight
        self._optimizer: Any = engine.optimizer
        self._of_bf16 = self._place_in_groups() if isinstance(engine.optimizer, BF16_Optimizer) else None

    def multiplier(self) -> float:
        """Loss scale, where there is one, over the micro-batches of a step; rounded as autograd has it, in fp32."""
        scale = float(self._optimizer.loss_scaler.loss_scale) if self._engine.fp16_enabled() else 1.0
        return float(torch.tensor(scale) / self._engine.gradient_accumulation_steps())

    def weight_sum(self) -> tuple[Tensor, bool] | None:
        """As `Accumulation` has it; None where fp16 gradients are added up in fp16."""
        if self._of_bf16 is not None:
            return self._in_bf16_optimizer(*self._of_bf16)
        if self._optimizer.use_grad_accum_attribute:
            name = "grad_accum"
        elif self._weight.dtype == torch.float32:
            name = "grad"
        else:
            return None
        found = getattr(self._weight, name)
        if found is None:
            found = torch.empty_like(self._weight, dtype=torch.float32, memory_format=torch.contiguous_format)
            setattr(self._weight, name, found)
            return found.detach(), True
        return found.detach(), False

    def _in_bf16_optimizer(self, group: int, index: int) -> tuple[Tensor, bool]:
        """It clears its sums after each step, and looks for one where it has been told that there is one."""
        found = self._optimizer.fp32_groups_gradients[group][index]
        self._optimizer.fp32_groups_has_gradients[group][index] = True
        self._weight._hp_grad = found  # type: ignore[attr-defined]
        return found.view(self._weight.shape), False

    def _place_in_groups(self) -> tuple[int, int]:
        for group, weights in enumerate(self._optimizer.bf16_groups):
            for index, weight in enumerate(weights):
                if weight is self._weight:
                    return group, index
        raise ValueError("the optimizer does not train the output layer's weight")
