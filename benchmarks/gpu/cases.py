"""The timed case of each kernel: its inputs, torch's operation, the bytes that it must move, and the bar.

Bytes: each input read once and each output written once, but what a causal softmax need not read. The bars are shares
of the rate at which the same GPU copies memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.timing import Buffers
from trainer.kernels.adam import AdamBuffers, AdamSettings
from trainer.kernels.choice import Operations

_EPSILON = 1e-5
_ADAM_SETTINGS = AdamSettings(1e-4, 0.9, 0.95, 1e-8, 0.1, 10)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the inputs; the numbers that peers publish."""

    rows: int = 8192
    hidden: int = 4096
    width: int = 16384
    samples: int = 4
    heads: int = 16
    sequence: int = 2048
    vocabulary: int = 62720  # a quarter of 250,880
    weights: int = 1 << 28
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """`ours` and `by_torch` take what `make` makes. goal: the share of the copy rate that ours is to reach, if any."""

    name: str
    shape: str
    bytes_moved: int
    make: Callable[[], Buffers]
    ours: Callable[..., Any]
    by_torch: Callable[..., Any]
    goal: float | None = None


def cases(operations: Operations, device: torch.device, sizes: Sizes) -> list[Case]:
    """Those of all families that have kernels."""
    found: list[Case] = []
    for kernels, of_family in (
        (operations.norms, _norms),
        (operations.softmax, _softmax),
        (operations.activations, _activations),
        (operations.residuals, _residuals),
        (operations.cross_entropy, _cross_entropy),
        (operations.adam, _adam),
    ):
        if kernels is not None:
            found += of_family(kernels, device, sizes)
    return found


def _norms(kernels: Any, device: torch.device, sizes: Sizes) -> list[Case]:
    rows, hidden, item = sizes.rows, sizes.hidden, sizes.dtype.itemsize
    one, shape = rows * hidden * item, f"{rows} x {hidden} {_name(sizes.dtype)}"

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, device=device, dtype=sizes.dtype)

    def forward() -> Buffers:
        return draw(rows, hidden), draw(hidden), draw(hidden)

    def backward() -> Buffers:
        mean, deviation = (torch.rand(rows, 1, device=device) for _ in range(2))
        return draw(rows, hidden), draw(rows, hidden), draw(hidden), draw(hidden), mean, deviation

    return [
        Case(
            "LayerNorm forward",
            shape,
            2 * one,
            forward,
            lambda x, weight, bias: kernels.forward(x, weight, bias, _EPSILON, False),
            lambda x, weight, bias: nn.functional.layer_norm(x, (hidden,), weight, bias, _EPSILON),
            0.90,
        ),
        Case(
            "LayerNorm backward",
            shape,
            3 * one,
            backward,
            lambda g, x, weight, _, mean, deviation: kernels.backward(
                g, x, weight, mean.flatten(), deviation.flatten(), None, True
            ),
            lambda g, x, weight, bias, mean, deviation: torch.ops.aten.native_layer_norm_backward(
                g, x, [hidden], mean, deviation, weight, bias, [True, True, True]
            ),
            0.80,
        ),
        Case(
            "RMSNorm forward",
            shape,
            2 * one,
            forward,
            lambda x, weight, _: kernels.forward(x, weight, None, _EPSILON, True),
            lambda x, weight, _: nn.functional.rms_norm(x, (hidden,), weight, _EPSILON),
        ),
        Case(
            "residual + LayerNorm",
            shape,
            4 * one,
            lambda: (*forward(), draw(rows, hidden)),
            lambda x, weight, bias, residual: kernels.add_forward(x, residual, weight, bias, _EPSILON, False),
            lambda x, weight, bias, residual: nn.functional.layer_norm(x + residual, (hidden,), weight, bias, _EPSILON),
        ),
    ]


def _softmax(kernels: Any, device: torch.device, sizes: Sizes) -> list[Case]:
    b, n, s = sizes.samples, sizes.heads, sizes.sequence
    one, shape, scale = b * n * s * s * sizes.dtype.itemsize, f"{b} x {n} x {s} x {s} {_name(sizes.dtype)}", 0.125
    later = torch.ones(s, s, dtype=torch.bool, device=device).triu(1)
    slopes = torch.rand(n, device=device)
    bias = slopes.view(1, n, 1, 1) * torch.arange(s, device=device)

    def draw() -> Tensor:
        return torch.randn(b, n, s, s, device=device, dtype=sizes.dtype)

    def by_torch(scores: Tensor) -> Tensor:
        return (scores.float() * scale).masked_fill(later, -torch.inf).softmax(-1).to(scores.dtype)

    def alibi_by_torch(scores: Tensor) -> Tensor:
        return (scores.float() * scale + bias).masked_fill(later, -torch.inf).softmax(-1).to(scores.dtype)

    def backward_by_torch(g: Tensor, p: Tensor) -> Tensor:
        of_scores: Tensor = torch.ops.aten._softmax_backward_data(g.float(), p.float(), -1, torch.float32)
        return (of_scores * scale).to(g.dtype)

    return [
        Case(
            "causal softmax forward",
            shape,
            one * 3 // 2,
            lambda: (draw(),),
            lambda scores: kernels.forward(scores, None, scale, None, True),
            by_torch,
            0.85,
        ),
        Case(
            "causal softmax + ALiBi",
            shape,
            one * 3 // 2,
            lambda: (draw(),),
            lambda scores: kernels.forward(scores, None, scale, slopes, True),
            alibi_by_torch,
        ),
        Case(
            "causal softmax backward",
            shape,
            one * 2,
            lambda: (draw(), by_torch(draw())),
            lambda g, p: kernels.backward(g, p, scale, True),
            backward_by_torch,
            0.85,
        ),
    ]


def _activations(kernels: Any, device: torch.device, sizes: Sizes) -> list[Case]:
    rows, width = sizes.rows, sizes.width
    one, shape = rows * width * sizes.dtype.itemsize, f"{rows} x {width} {_name(sizes.dtype)}"

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, device=device, dtype=sizes.dtype)

    def backward_by_torch(g: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        of_x: Tensor = torch.ops.aten.gelu_backward(g, x + bias, approximate="tanh")
        return of_x, of_x.sum(0)

    def gate_case(name: str, activation: str, by_torch: Callable[[Tensor], Tensor]) -> Case:
        return Case(
            name,
            shape,
            3 * one,
            lambda: (draw(rows, width), draw(rows, width)),
            lambda gate, wide: kernels.gated(gate, wide, activation),
            lambda gate, wide: by_torch(gate) * wide,
        )

    return [
        Case(
            "bias + GeLU forward",
            shape,
            2 * one,
            lambda: (draw(rows, width), draw(width)),
            lambda x, bias: kernels.bias_gelu(x, bias, True),
            lambda x, bias: nn.functional.gelu(x + bias, approximate="tanh"),
            0.90,
        ),
        Case(
            "bias + GeLU backward",
            shape,
            3 * one,
            lambda: (draw(rows, width), draw(rows, width), draw(width)),
            lambda g, x, bias: kernels.bias_gelu_backward(g, x, bias, True),
            backward_by_torch,
            0.90,
        ),
        gate_case("SwiGLU forward", "silu", nn.functional.silu),
        gate_case("GeGLU forward", "gelu_tanh", partial(nn.functional.gelu, approximate="tanh")),
    ]


def _cross_entropy(kernels: Any, device: torch.device, sizes: Sizes) -> list[Case]:
    rows, vocabulary = sizes.rows, sizes.vocabulary

    def make() -> Buffers:
        logits = torch.randn(rows, vocabulary, device=device, dtype=sizes.dtype)
        return logits, torch.randint(vocabulary, (rows,), device=device), torch.full((rows,), 1 / rows, device=device)

    def ours(logits: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        log_sum, of_label = kernels.whole(logits, labels, share, vocabulary)
        losses: Tensor = log_sum - of_label
        return losses

    def ours_split(logits: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        highest, total, of_label = kernels.statistics(logits, labels, vocabulary)
        log_sum = highest + total.log()
        kernels.to_gradient(logits, labels, log_sum, share, vocabulary)
        losses: Tensor = log_sum - of_label
        return losses

    def by_torch(logits: Tensor, labels: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        logs = logits.float().log_softmax(-1)
        gradient = logs.exp()
        gradient.scatter_add_(1, labels.unsqueeze(1), -torch.ones_like(share).unsqueeze(1))
        gradient = (gradient * share.unsqueeze(1)).to(logits.dtype)
        return logs.gather(1, labels.unsqueeze(1)), gradient

    moved = 3 * rows * vocabulary * sizes.dtype.itemsize
    shape = f"{rows} x {vocabulary} {_name(sizes.dtype)}"
    return [
        Case("cross entropy", shape, moved, make, ours, by_torch, 0.80),
        Case("cross entropy, split over ranks", shape, moved, make, ours_split, by_torch, 0.80),
    ]


def _residuals(kernels: Any, device: torch.device, sizes: Sizes) -> list[Case]:
    b, s, h = sizes.samples, sizes.sequence, sizes.hidden
    seeds = torch.arange(b, device=device)

    def make() -> Buffers:
        return tuple(torch.randn(*size, device=device, dtype=sizes.dtype) for size in ((b, s, h), (h,), (b, s, h)))

    return [
        Case(
            "residual + dropout(x + bias)",
            f"{b} x {s} x {h} {_name(sizes.dtype)}",
            3 * b * s * h * sizes.dtype.itemsize,
            make,
            lambda x, bias, residual: kernels.forward(x, bias, residual, seeds, 0.1, (0, 1)),
            lambda x, bias, residual: residual + nn.functional.dropout(x + bias, 0.1),
        )
    ]


def _adam(kernels: Any, device: torch.device, sizes: Sizes) -> list[Case]:
    count, item = sizes.weights, sizes.dtype.itemsize

    def make() -> Buffers:
        weight, first = torch.randn(count, device=device), torch.randn(count, device=device)
        second, gradient = torch.rand(count, device=device), torch.randn(count, device=device).to(sizes.dtype)
        return weight, gradient, first, second, torch.empty(count, device=device, dtype=sizes.dtype)

    def ours(*buffers: Tensor) -> None:
        kernels.step([AdamBuffers(*buffers)], _ADAM_SETTINGS, 1.0)

    shape = f"{count:,} {_name(sizes.dtype)} gradients"
    adam = Case("Adam, fp32 and 16-bit weight", shape, count * (24 + 2 * item), make, ours, _adam_by_torch, 0.90)
    squares = Case(
        "squares of all gradients",
        shape,
        count * item,
        lambda: (torch.randn(count, device=device).to(sizes.dtype),),
        lambda gradient: kernels.squares([gradient]),
        lambda gradient: torch.linalg.vector_norm(gradient, dtype=torch.float32),
    )
    return [adam, squares]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _adam_by_torch(weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, half: Tensor | None) -> None:
    """Update as a training without kernels does: fp32 gradients, torch's fused AdamW, the weight rounded."""
    step = torch.full((), float(_ADAM_SETTINGS.step - 1), device=weight.device)
    torch._fused_adamw_(
        [weight],
        [gradient.float()],
        [first],
        [second],
        [],
        [step],
        lr=_ADAM_SETTINGS.learning_rate,
        beta1=_ADAM_SETTINGS.beta1,
        beta2=_ADAM_SETTINGS.beta2,
        weight_decay=_ADAM_SETTINGS.weight_decay,
        eps=_ADAM_SETTINGS.epsilon,
        amsgrad=False,
        maximize=False,
    )
    if half is not None:
        half.copy_(weight)
