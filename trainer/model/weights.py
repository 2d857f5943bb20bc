"""The weights of one layer, made from the table of parameters: the only place where a model gets any."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from trainer.core.dtypes import DTYPES
from trainer.kernels.normalization import added_and_normalized, normalized
from trainer.parallel.process_groups import Parallel
from trainer.parallel.sequence import gradient_of_all_slices
from trainer.parallel.tensor_parallel import initial_parameter
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import Parameter


class LayerWeights:
    """The parameters of one layer's `table` on this rank, by their names; created on first use."""

    def __init__(self, table: Iterable[Parameter], shape: ModelShape, parallel: Parallel) -> None:
        self._table = {one.name: one for one in table}
        self._shape, self.parallel = shape, parallel

    def __getitem__(self, name: str) -> nn.Parameter:
        return initial_parameter(self._table[name], self._shape.seed, self.parallel, DTYPES[self._shape.precision])

    def pair(self, name: str) -> tuple[nn.Parameter, nn.Parameter | None]:
        """Weight and, if there is one, bias of what is called `name` in the layer; "" is the layer itself."""
        prefix = f"{name}." if name else ""
        bias = f"{prefix}bias"
        return self[f"{prefix}weight"], self[bias] if bias in self._table else None


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last dimension, as the shape says, whole on every tensor-parallel rank.

    Sources: Ba et al., arXiv 1607.06450; Zhang and Sennrich, arXiv 1910.07467. Statistics are in fp32.
    """

    def __init__(self, shape: ModelShape, weights: LayerWeights, name: str) -> None:
        super().__init__()
        self.rms, self.epsilon, self.added = shape.rms_norm, shape.layernorm_epsilon, float(shape.norms_about_zero)
        self.parallel = weights.parallel
        self.weight, self.bias = weights.pair(name)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., size of the weight]: the same shape and dtype. If x is a slice, backward is collective."""
        return self.normalized(x, *self._shared())

    def of_sum(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(residual + x, its norm), both of x's shape and dtype. Where x is a slice, backward is collective."""
        weight, bias = self._shared()
        kernels = self.parallel.operations.norms
        return added_and_normalized(x, residual, weight, bias, self.epsilon, self.rms, kernels)

    def _shared(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias, whose gradients are summed where ranks have slices."""
        bias = None if self.bias is None else gradient_of_all_slices(self.bias, self.parallel)
        weight = gradient_of_all_slices(self.weight, self.parallel)
        return weight + self.added if self.added else weight, bias

    def normalized(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Normalise x, times `weight`, plus `bias`."""
        return normalized(x, weight, bias, self.epsilon, self.rms, self.parallel.operations.norms)
