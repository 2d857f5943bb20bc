"""The timed operations of each family, forward and backward as in a training, and their implementations.

Sizes are those of one rank, split as tensor-parallel ranks split them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.core.dtypes import DTYPES
from trainer.kernels.activation import GateActivation, bias_gelu, gate_activation, gated
from trainer.kernels.adam import AdamBuffers, AdamKernels, AdamSettings
from trainer.kernels.cross_entropy import CrossEntropyKernels, statistics, to_gradient
from trainer.kernels.normalization import normalized
from trainer.kernels.residual import Dropped, added
from trainer.kernels.times import Buffers
from trainer.recipe.activations import chunk_tokens
from trainer.recipe.layout import splits_sequence
from trainer.recipe.model_options import Vocabulary, has_tanh_gelu, precision_of
from trainer.recipe.options import Options

#: Rows of the output layer if only the tokenizer knows their number.
_SOME_VOCABULARY = 50_304
ADAM_SETTINGS = AdamSettings(1e-4, 0.9, 0.95, 1e-8, 0.1, 10)


@dataclass(frozen=True)
class Sizes:
    """The sizes of one rank's micro-batch. positions: of each sample, for operations that are not split by heads."""

    samples: int
    sequence: int
    positions: int
    hidden: int
    width: int
    vocabulary: int
    precision: str
    epsilon: float
    rms: bool
    gate: GateActivation | None
    tanh: bool
    dropout: float

    @classmethod
    def of(cls, options: Options) -> Sizes:
        """Return the sizes of a training with these options."""
        tensor, tanh = options.tensor_model_parallel_size, has_tanh_gelu(options)
        rows = Vocabulary.of(options.vocab_size or _SOME_VOCABULARY, options).rows
        return cls(
            samples=options.micro_batch_size,
            sequence=options.seq_length,
            positions=options.seq_length // (tensor if splits_sequence(options) else 1),
            hidden=options.hidden_size,
            width=options.ffn_hidden_size // tensor,
            vocabulary=rows // tensor,
            precision=precision_of(options),
            epsilon=options.layernorm_epsilon,
            rms=options.normalization == "RMSNorm",
            gate=gate_activation(options.glu_activation, tanh) if options.glu_activation else None,
            tanh=tanh,
            dropout=options.hidden_dropout,
        )

    def kind(self, family: str) -> str:
        """Return the kind of a family's operation; empty if there is only one."""
        if family == "norms":
            return "RMSNorm" if self.rms else "LayerNorm"
        if family == "activations":
            return "gelu_tanh" if self.tanh else "gelu_erf"
        return self.gate or "" if family == "gates" else ""

    def columns(self, family: str) -> int:
        """Return the number of elements of a row."""
        if family in ("activations", "gates"):
            return self.width
        return self.vocabulary if family == "cross entropy" else self.hidden


@dataclass(frozen=True)
class Work:
    """One family's work in a step.

    operation: given kernels (None: torch), a function of some of the buffers. run: calls such a function, forward and
    backward, on the buffers of `make`.
    """

    shape: str
    make: Callable[[], Buffers]
    operation: Callable[[Any], Callable[..., Any]]
    run: Callable[..., Any]


def work_of(family: str, sizes: Sizes, device: torch.device, weights: int) -> Work:
    """Return the work of a family, by its name in `trainer.kernels.choice`. weights: the number of Adam updates."""
    return _WORK[family](_Drawn(sizes, device), weights)


class _Drawn:
    """Random tensors of the training's precision."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.sizes, self.device, self.dtype = sizes, device, DTYPES[sizes.precision]

    def constant(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def leaf(self, *shape: int) -> Tensor:
        return self.constant(*shape).requires_grad_()


def _backward_too(leaves: int) -> Callable[..., Any]:
    """Return a runner of a function of the first `leaves` buffers; the next one is its result's gradient."""

    def run(function: Callable[..., Tensor], *buffers: Tensor) -> Any:
        result = function(*buffers[:leaves])
        return torch.autograd.grad(result, buffers[:leaves], buffers[leaves])

    return run


def _norms(drawn: _Drawn, _weights: int) -> Work:
    own = drawn.sizes
    rows, hidden = own.samples * own.positions, own.hidden

    def operation(kernels: Any) -> Callable[..., Tensor]:
        if own.rms:
            return lambda x, weight: normalized(x, weight, None, own.epsilon, True, kernels)
        return lambda x, weight, bias: normalized(x, weight, bias, own.epsilon, False, kernels)

    def make() -> Buffers:
        weights = [drawn.leaf(hidden) for _ in range(1 if own.rms else 2)]
        return drawn.leaf(rows, hidden), *weights, drawn.constant(rows, hidden)

    return Work(f"{rows} x {hidden}", make, operation, _backward_too(2 if own.rms else 3))


def _activations(drawn: _Drawn, _weights: int) -> Work:
    own = drawn.sizes
    rows = own.samples * own.sequence
    return Work(
        f"{rows} x {own.width}",
        lambda: (drawn.leaf(rows, own.width), drawn.leaf(own.width), drawn.constant(rows, own.width)),
        lambda kernels: lambda x, bias: bias_gelu(x, bias, own.tanh, kernels),
        _backward_too(2),
    )


def _gates(drawn: _Drawn, _weights: int) -> Work:
    own = drawn.sizes
    rows, activation = own.samples * own.sequence, own.gate or "silu"
    return Work(
        f"{rows} x {own.width}",
        lambda: (*(drawn.leaf(rows, own.width) for _ in range(2)), drawn.constant(rows, own.width)),
        lambda kernels: lambda gate, wide: gated(gate, wide, activation, kernels),
        _backward_too(2),
    )


def _residuals(drawn: _Drawn, _weights: int) -> Work:
    own = drawn.sizes
    shape = own.samples, own.positions, own.hidden
    dropped = Dropped(list(range(own.samples)), own.dropout) if own.dropout else None
    return Work(
        " x ".join(map(str, shape)),
        lambda: (drawn.leaf(*shape), drawn.leaf(own.hidden), drawn.leaf(*shape), drawn.constant(*shape)),
        lambda kernels: lambda x, bias, residual: added(x, bias, residual, dropped, kernels),
        _backward_too(3),
    )


def _cross_entropy(drawn: _Drawn, _weights: int) -> Work:
    """Return the work on a chunk of logits that become their gradient; torch has them in fp32, and rounds."""
    own, device = drawn.sizes, drawn.device
    rows = own.vocabulary
    tokens = chunk_tokens(own.samples * own.sequence, rows, device.type)

    def operation(kernels: CrossEntropyKernels | None) -> Callable[..., Any]:
        def ours(logits: Tensor, labels: Tensor, share: Tensor) -> Any:
            assert kernels is not None
            return kernels.whole(logits, labels, share, rows)

        def by_torch(logits: Tensor, labels: Tensor, share: Tensor) -> Any:
            wide = logits.float()
            found = statistics(wide, labels, rows, None)
            log_sum = found.greatest_t + found.sum_t.log()
            to_gradient(wide, labels, found.greatest_t, log_sum, share, rows, None)
            return log_sum, found.label_logit_t, wide.to(logits.dtype)

        return by_torch if kernels is None else ours

    def make() -> Buffers:
        labels = torch.randint(rows, (tokens,), device=device)
        return drawn.constant(tokens, rows), labels, torch.full((tokens,), 1 / tokens, device=device)

    return Work(f"{tokens} x {rows}", make, operation, lambda function, *buffers: function(*buffers))


def _adam(drawn: _Drawn, weights: int) -> Work:
    """Return the work on one flat tensor: fp32 weights and moments; gradients and rounded weight as in the training."""
    is_half = drawn.dtype != torch.float32

    def make() -> Buffers:
        weight, first = (torch.randn(weights, device=drawn.device) for _ in range(2))
        second, gradient = torch.rand(weights, device=drawn.device), drawn.constant(weights)
        return weight, gradient, first, second, torch.empty_like(gradient) if is_half else None

    def operation(kernels: AdamKernels | None) -> Callable[..., None]:
        if kernels is None:
            return adam_by_torch
        return lambda *buffers: kernels.step([AdamBuffers(*buffers)], ADAM_SETTINGS)

    return Work(f"{weights:,} weights", make, operation, lambda function, *buffers: function(*buffers))


def adam_by_torch(weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, half: Tensor | None) -> None:
    """Update as a training without kernels does: fp32 gradients, torch's fused AdamW, the weight rounded."""
    step = torch.full((), float(ADAM_SETTINGS.step - 1), device=weight.device)
    torch._fused_adamw_(
        [weight],
        [gradient.float()],
        [first],
        [second],
        [],
        [step],
        lr=ADAM_SETTINGS.learning_rate,
        beta1=ADAM_SETTINGS.beta1,
        beta2=ADAM_SETTINGS.beta2,
        weight_decay=ADAM_SETTINGS.weight_decay,
        eps=ADAM_SETTINGS.epsilon,
        amsgrad=False,
        maximize=False,
    )
    if half is not None:
        half.copy_(weight)


_WORK: dict[str, Callable[[_Drawn, int], Work]] = {
    "norms": _norms,
    "activations": _activations,
    "gates": _gates,
    "residuals": _residuals,
    "cross entropy": _cross_entropy,
    "Adam": _adam,
}
