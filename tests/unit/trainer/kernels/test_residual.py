"""residual + dropout(x + bias) by torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainer.kernels.residual import Dropped, added, keeping_masks, kept_scale

DROPPED = Dropped([7, 9], 0.3, (1, 2))


@pytest.mark.parametrize("dropped", [None, DROPPED])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("with_residual", [True, False])
def test_torch_adds_and_drops_and_has_the_gradients(
    dropped: Dropped | None, with_bias: bool, with_residual: bool
) -> None:
    x, residual = torch.randn(2, 2, 3, 5, dtype=torch.float64, requires_grad=True).unbind()
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)
    factor: Tensor | float = 1.0
    if dropped:
        factor = keeping_masks([7, 9], (3, 5), 0.3, x.device, (1, 2)).double() * kept_scale(0.3)
    wanted = (x + bias if with_bias else x) * factor + (residual if with_residual else 0)

    def total(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return added(x, bias if with_bias else None, residual if with_residual else None, dropped, None)

    assert torch.allclose(total(x, bias, residual), wanted, rtol=1e-15)
    assert torch.autograd.gradcheck(total, (x, bias, residual))


def test_where_nothing_is_to_be_done_x_comes_back() -> None:
    x = torch.randn(2, 3, 4)
    assert added(x, None, None, None, None) is x
