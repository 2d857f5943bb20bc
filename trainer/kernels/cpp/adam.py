"""Adam and sums of squares by `csrc/cpu/adam.cpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.kernels.adam import AdamBuffers, AdamSettings

_GRADIENTS = (torch.float32, torch.bfloat16)


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
        """The sum of all squares, fp64 [1]."""
        are_bf16 = (ctypes.c_uint8 * len(gradients))(*(one.dtype == torch.bfloat16 for one in gradients))
        total = self._squares(len(gradients), _addresses(gradients), _sizes(gradients), are_bf16)
        return torch.tensor([total], dtype=torch.float64)


def _addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(None if one is None else one.data_ptr() for one in tensors))


def _sizes(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(tensors))(*(one.numel() for one in tensors))
