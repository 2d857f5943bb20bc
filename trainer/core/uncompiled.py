"""torch without its compiler, of which training uses nothing; recomputation alone has torch look at its settings.

torch 2.13 asks `torch._dynamo` in every optimizer's step and in each function that it keeps the compiler away from, and
`torch.fx` whether a gradient handed to `backward` has its tensor's shape: 800 modules, half as many again as torch and
DeepSpeed have, for answers that are always the same where nothing is compiled.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

#: What torch loads of it.
COMPILER = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes")
_OPTIMIZERS = ("AdamW", "SGD")
_MARK = "__dynamo_disable"  # where torch keeps what it has made of a function, once made


def leave_compiler_out(torch: Any) -> None:
    """Have training's calls of torch load no compiler. In a torch made otherwise, load it now, before any fork."""
    make_gradients = getattr(torch.autograd, "_make_grads", None)
    if getattr(make_gradients, "__module__", None) == __name__:
        return
    importlib.import_module("torch.utils.checkpoint")
    optimizers, base = [getattr(torch.optim, name) for name in _OPTIMIZERS], torch.optim.Optimizer
    kept_away = [base.add_param_group, base.zero_grad, base.state_dict, base.load_state_dict]
    kept_away.append(torch.utils.checkpoint.checkpoint)
    wrapped = [*kept_away, *(one.step for one in optimizers)]
    if make_gradients is None or not all(hasattr(one, "__wrapped__") for one in wrapped):
        for name in COMPILER:
            importlib.import_module(name)
        return
    for function in kept_away:
        setattr(function.__wrapped__, _MARK, function.__wrapped__)
    for optimizer in optimizers:
        optimizer.step = torch.no_grad()(optimizer.step.__wrapped__)
    torch.autograd._make_grads = _taking_what_fits(torch, make_gradients)


def _taking_what_fits(torch: Any, by_torch: Callable[..., Any]) -> Callable[..., Any]:
    def fits(output: Any, gradient: Any) -> bool:
        return (
            type(output) is type(gradient) is torch.Tensor
            and output.shape == gradient.shape
            and output.dtype == gradient.dtype
            and not output.is_nested
        )

    def gradients_of(outputs: Sequence[Any], gradients: Sequence[Any], is_grads_batched: bool) -> Any:
        if not is_grads_batched and len(outputs) == len(gradients) and all(map(fits, outputs, gradients)):
            return tuple(gradients)
        return by_torch(outputs, gradients, is_grads_batched)

    return gradients_of
