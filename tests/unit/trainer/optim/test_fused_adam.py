"""AdamW by kernels beside torch's own: the same numbers, the same states."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.native_libraries import built_library
from trainer.kernels.cpp import CppAdam
from trainer.optim.fused_adam import FusedAdam

SETTINGS: dict[str, Any] = {"lr": 3e-2, "betas": (0.9, 0.95), "eps": 1e-8}


def groups_of(parameters: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": parameters[:1], "names": ["matrix"], "weight_decay": 0.1},
        {"params": parameters[1:], "names": ["bias"], "weight_decay": 0.0},
    ]


def parameters_of() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((7, 11), (5,))]


def by_kernels(parameters: list[torch.nn.Parameter]) -> FusedAdam:
    return FusedAdam(groups_of(parameters), CppAdam(built_library("operations")), **SETTINGS)


def by_torch(parameters: list[torch.nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups_of(parameters), fused=True, **SETTINGS)


def train(optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_groups_and_states_are_those_of_torch() -> None:
    ours, theirs = by_kernels(parameters_of()), by_torch(parameters_of())
    train(ours, range(3))
    train(theirs, range(3))
    own, other = ours.state_dict(), theirs.state_dict()
    assert own["param_groups"] == other["param_groups"]
    assert own["state"].keys() == other["state"].keys()
    for number, state in other["state"].items():
        assert list(own["state"][number]) == list(state)
        for name, value in state.items():
            assert own["state"][number][name].dtype == value.dtype
            torch.testing.assert_close(own["state"][number][name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("before", "after"), [(by_kernels, by_torch), (by_torch, by_kernels)])
def test_the_one_goes_on_where_the_other_stopped(before: Any, after: Any) -> None:
    parameters = parameters_of()
    whole = by_torch(parameters)
    train(whole, range(20))

    own = parameters_of()
    first = before(own)
    train(first, range(10))
    second = after(own)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, range(10, 20))
    for one, other in zip(own, parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_what_lies_behind_the_last_gradient_stays_as_it_is() -> None:
    parameter = torch.nn.Parameter(torch.ones(10))
    optimizer = by_kernels([parameter])
    half = torch.zeros(10, dtype=torch.bfloat16)
    gradients = [torch.ones(2, 2), torch.ones(3)]
    optimizer.update(optimizer.param_groups[0], parameter, gradients, half=half)
    changed = parameter.detach() != 1
    assert changed.tolist() == [True] * 7 + [False] * 3
    assert torch.equal(half, torch.where(changed, parameter.detach(), 0).bfloat16())


def test_it_takes_no_closure() -> None:
    with pytest.raises(ValueError, match="takes no closure"):
        by_kernels(parameters_of()).step(lambda: 0.0)
