"""The weights of one layer, made from the table of parameters: the only place where a model gets any."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from trainer.parallel.process_groups import Parallel
from trainer.parallel.tensor_parallel import initial_parameter
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import Parameter

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class LayerWeights:
    """This rank's part of every parameter in one layer's `table`, by its name there; made when it is asked for."""

    def __init__(self, table: Iterable[Parameter], shape: ModelShape, parallel: Parallel) -> None:
        self._table = {one.name: one for one in table}
        self._shape, self._parallel = shape, parallel

    def __getitem__(self, name: str) -> nn.Parameter:
        return initial_parameter(self._table[name], self._shape.seed, self._parallel, DTYPES[self._shape.precision])

    def pair(self, name: str) -> tuple[nn.Parameter, nn.Parameter]:
        """Weight and bias of what is called `name` in the layer; the layer itself when that is empty."""
        prefix = f"{name}." if name else ""
        return self[f"{prefix}weight"], self[f"{prefix}bias"]


class LayerNorm(nn.LayerNorm):
    """LayerNorm over the last dimension with this weight and bias, whole on every tensor-parallel rank."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter, epsilon: float) -> None:
        super().__init__(weight.shape[0], eps=epsilon, dtype=weight.dtype)
        self.weight, self.bias = weight, bias
