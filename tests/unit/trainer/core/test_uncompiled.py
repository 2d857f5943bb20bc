from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.core import uncompiled


@pytest.fixture
def torch() -> Any:
    from trainer.core.preload import import_engine

    import_engine()
    return importlib.import_module("torch")


def test_a_gradient_goes_back_as_it_is_where_it_has_its_tensors_shape(torch: Any) -> None:
    leaf, gradient = torch.ones(2, 3, requires_grad=True), torch.arange(6.0).reshape(2, 3)
    (leaf * 2).backward(gradient)
    assert torch.equal(leaf.grad, 2 * gradient)


@pytest.mark.parametrize(("shape", "dtype"), [((3, 2), "float32"), ((2, 3), "complex64")])
def test_a_gradient_that_does_not_fit_is_refused_in_torchs_words(
    torch: Any, shape: tuple[int, int], dtype: str
) -> None:
    leaf = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"Mismatch in (shape|dtype): grad_output\[0\]"):
        (leaf * 2).backward(torch.ones(shape, dtype=getattr(torch, dtype)))


def test_a_step_of_an_optimizer_keeps_no_graph_and_leaves_gradients_on(torch: Any) -> None:
    leaf = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([leaf], lr=0.5)
    leaf.sum().backward()
    optimizer.step()
    assert leaf.tolist() == [0.5, 0.5, 0.5]
    assert leaf.is_leaf and torch.is_grad_enabled()


def test_a_torch_that_is_made_otherwise_has_its_compiler_loaded_ahead(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> None:
        raise AssertionError("no step is taken")

    others = {name: SimpleNamespace(step=step) for name in ("AdamW", "SGD")}
    other = SimpleNamespace(
        autograd=SimpleNamespace(_make_grads=step),
        optim=SimpleNamespace(**others, Optimizer=torch.optim.Optimizer),
        utils=torch.utils,
    )
    loaded: list[str] = []
    monkeypatch.setattr(importlib, "import_module", loaded.append)
    uncompiled.leave_compiler_out(other)
    assert loaded[1:] == ["torch._dynamo", "torch.fx.experimental.symbolic_shapes"]
    assert others["AdamW"].step is step
