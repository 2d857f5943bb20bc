"""Recomputed tensors are not kept, and their gradients equal those of kept ones."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.kernels.recompute import made_again

_places: list[weakref.ref[np.ndarray[Any, Any]]] = []


class _Doubled(torch.autograd.Function):
    """2 x in an array whose end is seen, in `_places`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        array = 2 * x.detach().numpy()
        _places.append(weakref.ref(array))
        return torch.from_numpy(array)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return 2 * gradients[0]


def _doubled(x: Tensor) -> Tensor:
    result: Tensor = _Doubled.apply(x)  # type: ignore[no-untyped-call]
    return result


def _leaves() -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(7)
    x, weight = torch.randn(2, 3, 5, generator=drawn), torch.randn(4, 5, generator=drawn)
    return x.requires_grad_(), weight.requires_grad_()


def _forward(x: Tensor, weight: Tensor, again: bool) -> Tensor:
    """Return the sum of squares of a product of doubled inputs, which only autograd still holds."""
    doubled = _doubled(x)
    with made_again(doubled, (lambda: _doubled(x)) if again else None):
        product = torch.nn.functional.linear(doubled, weight)
    return product.square().sum()


def test_a_result_is_gone_until_the_backward_pass_only_where_it_is_made_again() -> None:
    x, weight = _leaves()
    kept, made = _forward(x, weight, again=False), _forward(x, weight, again=True)
    of_kept, of_made = _places[-2:]
    assert of_kept() is not None and of_made() is None
    made.backward()
    assert len(_places) >= 3 and _places[-1]() is None  # made once more, and gone
    kept.backward()


def test_gradients_are_the_same_bits_whether_a_result_is_kept_or_made_again() -> None:
    found = []
    for again in (False, True):
        x, weight = _leaves()
        _forward(x, weight, again).backward()
        assert x.grad is not None and weight.grad is not None
        found.append((x.grad, weight.grad))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_an_evaluation_makes_nothing_again() -> None:
    x, weight = _leaves()
    before = len(_places)
    with torch.no_grad():
        assert not _forward(x, weight, again=True).requires_grad
    assert len(_places) == before + 1
