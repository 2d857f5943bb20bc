"""Families of operations by `csrc/cpu`, on a CPU, fp32 and bf16; the library is given, loaded.

Results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.kernels.activation import NUMBERS, GateActivation
from trainer.kernels.adam import AdamBuffers, AdamSettings
from trainer.kernels.residual import kept_scale, lowest_kept_level

_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}


def refused(dtype: torch.dtype) -> str | None:
    """Why there is no function for elements of this type, in a few words; None where there is one."""
    return None if dtype in _SUFFIXES else f"on a CPU it has no {str(dtype).removeprefix('torch.')}"


class Calls:
    """`name`'s functions for fp32 and bf16. They take tensors (or None), sizes, and what else their library says."""

    def __init__(self, library: ctypes.CDLL, name: str, arguments: Sequence[Any], can_fail: bool = False) -> None:
        """arguments: their ctypes types. can_fail: whether the function says with 1 that there was no memory."""
        self._name, self._functions = name, {}
        for dtype, suffix in _SUFFIXES.items():
            function = getattr(library, f"{name}_{suffix}")
            function.argtypes = list(arguments)
            function.restype = ctypes.c_int if can_fail else None
            self._functions[dtype] = function

    def __call__(self, *arguments: Any) -> None:
        """Call the function for the element type of the first argument, a tensor. Raises MemoryError."""
        taken = [one.data_ptr() if isinstance(one, Tensor) else one for one in arguments]
        if self._functions[arguments[0].dtype](*taken):
            raise MemoryError(f"no memory for what the threads of {self._name} work in: use smaller micro-batches")


#: A tensor, or None.
TENSOR = ctypes.c_void_p
SIZE = ctypes.c_int64
NUMBER = ctypes.c_float
SIZES = ctypes.POINTER(ctypes.c_int64)


class CppActivations:
    """`ActivationKernels` of a CPU, fp32 and bf16. Results do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        sizes = [SIZE] * 3
        self._bias_gelu = Calls(library, "bias_gelu", [*[TENSOR] * 3, *sizes])
        self._bias_gelu_backward = Calls(library, "bias_gelu_backward", [*[TENSOR] * 5, *sizes], can_fail=True)
        self._gated = Calls(library, "gated", [*[TENSOR] * 3, *sizes])
        self._gated_backward = Calls(library, "gated_backward", [*[TENSOR] * 5, *sizes])

    def bias_gelu(self, x_rf: Tensor, bias_f: Tensor | None, tanh: bool) -> Tensor:
        """As `ActivationKernels` has it."""
        out_rf = torch.empty_like(x_rf)
        self._bias_gelu(x_rf, bias_f, out_rf, *x_rf.shape, tanh)
        return out_rf

    def bias_gelu_backward(
        self, gradient_rf: Tensor, x_rf: Tensor, bias_f: Tensor | None, tanh: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As `ActivationKernels` has it."""
        of_x, of_bias = torch.empty_like(x_rf), None if bias_f is None else torch.empty_like(bias_f)
        self._bias_gelu_backward(gradient_rf, x_rf, bias_f, of_x, of_bias, *x_rf.shape, tanh)
        return of_x, of_bias

    def gated(self, gate_rf: Tensor, wide_rf: Tensor, activation: GateActivation) -> Tensor:
        """As `ActivationKernels` has it."""
        out_rf = torch.empty_like(gate_rf)
        self._gated(gate_rf, wide_rf, out_rf, *gate_rf.shape, NUMBERS[activation])
        return out_rf

    def gated_backward(
        self, gradient_rf: Tensor, gate_rf: Tensor, wide_rf: Tensor, activation: GateActivation
    ) -> tuple[Tensor, Tensor]:
        """As `ActivationKernels` has it."""
        of_gate, of_wide = torch.empty_like(gate_rf), torch.empty_like(wide_rf)
        self._gated_backward(gradient_rf, gate_rf, wide_rf, of_gate, of_wide, *gate_rf.shape, NUMBERS[activation])
        return of_gate, of_wide


class CppAttention:
    """`AttentionKernels` of a CPU, fp32 and bf16, which it computes in fp32.

    Results do not depend on the number of threads; a group of heads of one sample is what a thread takes.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        sizes = [SIZES, *[SIZE] * 5, NUMBER]
        self._forward = Calls(library, "attention_forward", [*[TENSOR] * 6, *sizes], can_fail=True)
        self._backward = Calls(library, "attention_backward", [*[TENSOR] * 10, *sizes], can_fail=True)

    def forward(
        self, q_bsgmd: Tensor, k_bsgd: Tensor, v_bsgd: Tensor, slopes_n: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """As `AttentionKernels` has it."""
        b, s, g, m, d = q_bsgmd.shape
        out = torch.empty(b, s, g, m, d, dtype=q_bsgmd.dtype)
        log_sums = torch.empty(b, g * m, s)
        strides = _strides(q_bsgmd, k_bsgd, v_bsgd, out)
        self._forward(q_bsgmd, k_bsgd, v_bsgd, slopes_n, out, log_sums, strides, b, g, m, s, d, scale)
        return out, log_sums

    def backward(
        self,
        gradient_bsgmd: Tensor,
        inputs: tuple[Tensor, Tensor, Tensor],
        out_bsgmd: Tensor,
        log_sums_bns: Tensor,
        slopes_n: Tensor | None,
        scale: float,
        gradients: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """As `AttentionKernels` has it."""
        b, s, g, m, d = out_bsgmd.shape
        strides = _strides(gradient_bsgmd, *inputs, out_bsgmd, *gradients)
        self._backward(
            gradient_bsgmd, *inputs, out_bsgmd, slopes_n, log_sums_bns, *gradients, strides, b, g, m, s, d, scale
        )


def _strides(*tensors: Tensor) -> ctypes.Array[ctypes.c_int64]:
    """Return of each tensor the strides of sample, group, member of the group (none if it is shared), and position."""
    found: list[int] = []
    for one in tensors:
        sample, position, group, *member = one.stride()[:-1]
        found += [sample, group, *(member or [0]), position]
    return (ctypes.c_int64 * len(found))(*found)


class CppNorms:
    """`NormKernels` of a CPU, fp32 and bf16. Results do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._forward = Calls(library, "norm_forward", [*[TENSOR] * 8, SIZE, SIZE, NUMBER])
        self._backward = Calls(library, "norm_backward", [*[TENSOR] * 9, SIZE, SIZE], can_fail=True)

    def forward(
        self, x_rh: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """As `NormKernels` has it."""
        y_rh, (mean_r, deviation_r) = torch.empty_like(x_rh), _statistics(x_rh, rms)
        self._forward(x_rh, None, weight_h, bias_h, None, y_rh, mean_r, deviation_r, *x_rh.shape, epsilon)
        return y_rh, mean_r, deviation_r

    def add_forward(
        self, x_rh: Tensor, residual_rh: Tensor, weight_h: Tensor, bias_h: Tensor | None, epsilon: float, rms: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """As `NormKernels` has it."""
        total_rh, y_rh, (mean_r, deviation_r) = torch.empty_like(x_rh), torch.empty_like(x_rh), _statistics(x_rh, rms)
        self._forward(x_rh, residual_rh, weight_h, bias_h, total_rh, y_rh, mean_r, deviation_r, *x_rh.shape, epsilon)
        return total_rh, y_rh, mean_r, deviation_r

    def backward(
        self,
        gradient_rh: Tensor,
        x_rh: Tensor,
        weight_h: Tensor,
        mean_r: Tensor | None,
        deviation_r: Tensor,
        added_rh: Tensor | None,
        has_bias: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """As `NormKernels` has it."""
        of_x, of_weight = torch.empty_like(x_rh), torch.empty_like(weight_h)
        of_bias = torch.empty_like(weight_h) if has_bias else None
        self._backward(
            gradient_rh, x_rh, weight_h, mean_r, deviation_r, added_rh, of_x, of_weight, of_bias, *x_rh.shape
        )
        return of_x, of_weight, of_bias


def _statistics(x_rh: Tensor, rms: bool) -> tuple[Tensor | None, Tensor]:
    """Room for the mean, which RMSNorm has none of, and the reciprocal of the deviation."""
    mean_r, deviation_r = x_rh.new_empty(2, len(x_rh), dtype=torch.float32)
    return None if rms else mean_r, deviation_r


_DROPOUT = [SIZE, SIZE, SIZE, SIZE, ctypes.c_int32, NUMBER]


class CppResiduals:
    """`ResidualKernels` of a CPU, fp32 and bf16. Results do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._forward = Calls(library, "residual", [*[TENSOR] * 5, *_DROPOUT])
        self._backward = Calls(library, "residual_backward", [*[TENSOR] * 4, *_DROPOUT], can_fail=True)

    def forward(
        self,
        x_bsh: Tensor,
        bias_h: Tensor | None,
        residual_bsh: Tensor | None,
        seeds_b: Tensor | None,
        probability: float,
        part: tuple[int, int],
    ) -> Tensor:
        """As `ResidualKernels` has it."""
        y_bsh = torch.empty_like(x_bsh)
        self._forward(y_bsh, x_bsh, bias_h, residual_bsh, seeds_b, *_dropout(x_bsh, probability, part))
        return y_bsh

    def backward(
        self,
        gradient_bsh: Tensor,
        seeds_b: Tensor | None,
        probability: float,
        part: tuple[int, int],
        has_bias: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """As `ResidualKernels` has it."""
        of_x_bsh = None if seeds_b is None else torch.empty_like(gradient_bsh)
        of_bias_h = gradient_bsh.new_empty(gradient_bsh.shape[-1]) if has_bias else None
        if of_x_bsh is not None or has_bias:
            self._backward(gradient_bsh, of_x_bsh, of_bias_h, seeds_b, *_dropout(gradient_bsh, probability, part))
        return gradient_bsh if of_x_bsh is None else of_x_bsh, of_bias_h


def _dropout(x_bsh: Tensor, probability: float, part: tuple[int, int]) -> tuple[int | float, ...]:
    """Return samples, positions, hidden, first_position, lowest_kept and scale; the last two are for seeds only."""
    first_position = part[0] * x_bsh.shape[1]
    return *x_bsh.shape, first_position, lowest_kept_level(probability), kept_scale(probability)


class CppCrossEntropy:
    """`CrossEntropyKernels` of a CPU. Raises ValueError for tensors that the functions would read wrongly."""

    def __init__(self, library: ctypes.CDLL) -> None:
        sizes = [SIZE] * 3
        self._statistics = Calls(library, "cross_entropy_statistics", [*[TENSOR] * 2, *sizes, *[TENSOR] * 3])
        self._gradient = Calls(library, "cross_entropy_gradient", [*[TENSOR] * 4, *sizes])
        self._whole = Calls(library, "cross_entropy_whole", [*[TENSOR] * 3, *sizes, *[TENSOR] * 2])

    def statistics(self, logits_tv: Tensor, labels_t: Tensor, first_padding: int) -> tuple[Tensor, Tensor, Tensor]:
        """As `CrossEntropyKernels` has it."""
        _require(logits_tv, labels_t)
        tokens, rows = logits_tv.shape
        greatest_t, sum_t, label_logit_t = logits_tv.new_empty(3, tokens, dtype=torch.float32)
        found = greatest_t, sum_t, label_logit_t
        self._statistics(logits_tv, labels_t, tokens, rows, min(first_padding, rows), *found)
        return found

    def to_gradient(
        self, logits_tv: Tensor, labels_t: Tensor, log_sum_t: Tensor, share_t: Tensor, first_padding: int
    ) -> None:
        """As `CrossEntropyKernels` has it."""
        _require(logits_tv, labels_t, log_sum_t, share_t)
        tokens, rows = logits_tv.shape
        self._gradient(logits_tv, labels_t, log_sum_t, share_t, tokens, rows, min(first_padding, rows))

    def whole(self, logits_tv: Tensor, labels_t: Tensor, share_t: Tensor, first_padding: int) -> tuple[Tensor, Tensor]:
        """As `CrossEntropyKernels` has it."""
        _require(logits_tv, labels_t, share_t)
        tokens, rows = logits_tv.shape
        log_sum_t, label_logit_t = logits_tv.new_empty(2, tokens, dtype=torch.float32)
        sizes = tokens, rows, min(first_padding, rows)
        self._whole(logits_tv, labels_t, share_t, *sizes, log_sum_t, label_logit_t)
        return log_sum_t, label_logit_t


def _require(logits_tv: Tensor, labels_t: Tensor, *real: Tensor) -> None:
    """Raise ValueError for tensors that are not contiguous, not on a CPU, or of another type than is read."""
    wanted = [(logits_tv, logits_tv.dtype), (labels_t, torch.int64), *((one, torch.float32) for one in real)]
    for tensor, dtype in wanted:
        if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise ValueError(f"cross entropy takes contiguous {dtype} on a CPU, not {tensor.dtype} on {tensor.device}")


class CppAdam:
    """`AdamKernels` of a CPU: gradients in fp32 or bf16, halves in bf16. Results depend on no number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointers = ctypes.POINTER(ctypes.c_void_p)
        sizes = ctypes.POINTER(ctypes.c_int64)
        number, real = ctypes.c_int64, ctypes.c_double
        self._step, self._squares = library.adam_step, library.sum_of_squares
        self._step.restype = None
        self._step.argtypes = [number, *[pointers] * 5, sizes, number, *[real] * 6, number]
        self._squares.restype = real
        self._squares.argtypes = [number, pointers, sizes, ctypes.POINTER(ctypes.c_uint8)]

    def step(self, buffers: Sequence[AdamBuffers], settings: AdamSettings, scale: Tensor | float = 1.0) -> None:
        """One update of each, as `AdamKernels` has it."""
        for is_bf16 in (False, True):
            alike = [one for one in buffers if (one.gradient.dtype == torch.bfloat16) == is_bf16]
            if not alike:
                continue
            self._step(
                len(alike),
                _addresses([one.weight for one in alike]),
                _addresses([one.gradient for one in alike]),
                _addresses([one.first for one in alike]),
                _addresses([one.second for one in alike]),
                _addresses([one.half for one in alike]),
                _sizes([one.weight for one in alike]),
                is_bf16,
                float(scale),
                settings.learning_rate,
                settings.beta1,
                settings.beta2,
                settings.epsilon,
                settings.weight_decay,
                settings.step,
            )

    def squares(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the sum of all squares, fp64 [1]."""
        are_bf16 = (ctypes.c_uint8 * len(gradients))(*(one.dtype == torch.bfloat16 for one in gradients))
        total = self._squares(len(gradients), _addresses(gradients), _sizes(gradients), are_bf16)
        return torch.tensor([total], dtype=torch.float64)


def _addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(None if one is None else one.data_ptr() for one in tensors))


def _sizes(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(tensors))(*(one.numel() for one in tensors))
