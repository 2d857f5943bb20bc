"""Adam and the sum of all squares by `csrc/cuda/adam.cu`, over all tensors in one launch for each pair of dtypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64

import torch
from torch import Tensor

from trainer.kernels.adam import AdamBuffers, AdamSettings
from trainer.kernels.cuda.tiles import address, suffix
from trainer.kernels.native.launching import Argument, KernelRunner, Launch

# As csrc/cuda/adam.cu has them.
_THREADS = 256
_ADAM_CHUNK = _THREADS * 4 * 4
_SQUARES_CHUNK = 8 * _ADAM_CHUNK


class CudaAdam:
    """`trainer.kernels.adam.AdamKernels`. Raises TypeError for a dtype without kernels."""

    def __init__(self, runner: KernelRunner) -> None:
        self._runner = runner

    @staticmethod
    def refuses(gradient: torch.dtype, half: torch.dtype | None) -> str | None:
        """Why there is no kernel for gradients of one dtype and weights' copies of another, or None."""
        if half in (None, gradient) or gradient == torch.float32:
            return None
        return f"no kernel takes gradients in {gradient} and writes weights in {half}"

    def step(self, buffers: Sequence[AdamBuffers], settings: AdamSettings, scale: Tensor | float = 1.0) -> None:
        """One update of all buffers. Raises TypeError as `refuses` says."""
        by_dtypes: dict[str, list[AdamBuffers]] = {}
        for one in buffers:
            half = None if one.half is None else one.half.dtype
            if refused := self.refuses(one.gradient.dtype, half):
                raise TypeError(refused)
            gradient = suffix(one.gradient.dtype)
            if one.weight.numel():
                by_dtypes.setdefault(f"adam_{gradient}_{suffix(half) if half else gradient}", []).append(one)
        for kernel, group in by_dtypes.items():
            device = group[0].weight.device
            on_device = scale.to(device, torch.float32).reshape(()) if isinstance(scale, Tensor) else None
            table, blocks = _table(group, _ADAM_CHUNK)
            by_number = c_float(1.0 if on_device is not None else float(scale))
            tensors = address(table), c_int32(len(group)), address(on_device)
            self._start(kernel, blocks, (*tensors, by_number, *_numbers(settings)))

    def squares(self, gradients: Sequence[Tensor]) -> Tensor:
        """fp64 [1]: the sum of all squares."""
        some = [one for one in gradients if one.numel()]
        device = gradients[0].device if gradients else torch.device("cpu")
        if not some:
            return torch.zeros(1, dtype=torch.float64, device=device)
        by_dtype: dict[str, list[Tensor]] = {}
        for one in some:
            by_dtype.setdefault(suffix(one.dtype), []).append(one)
        sums = []
        for name, group in by_dtype.items():
            table, blocks = _table(group, _SQUARES_CHUNK)
            sums.append(torch.empty(blocks, dtype=torch.float64, device=device))
            self._start(f"squares_{name}", blocks, (address(sums[-1]), address(table), c_int32(len(group))))
        partials = sums[0] if len(sums) == 1 else torch.cat(sums)
        total = torch.empty(1, dtype=torch.float64, device=device)
        self._start("squares_total", 1, (address(total), address(partials), c_int64(len(partials))))
        return total

    def _start(self, kernel: str, blocks: int, arguments: tuple[Argument, ...]) -> None:
        self._runner.launch(Launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), 0, arguments))


def _table(group: Sequence[AdamBuffers] | Sequence[Tensor], chunk: int) -> tuple[Tensor, int]:
    """Return the table of tensors for csrc/cuda/adam.cu, on their device, and the number of blocks, without waiting."""
    rows, blocks = [], 0
    for one in group:
        pieces = one if isinstance(one, AdamBuffers) else AdamBuffers(one, one, one, one)
        tensors = pieces.weight, pieces.gradient, pieces.first, pieces.second, pieces.half
        elements = pieces.gradient.numel()
        rows.append([*(address(tensor).value or 0 for tensor in tensors), elements, blocks])
        blocks += -(-elements // chunk)
    return torch.tensor(rows, dtype=torch.int64).to(pieces.gradient.device, non_blocking=True), blocks


def _numbers(settings: AdamSettings) -> tuple[Argument, ...]:
    """Return the numbers that depend on the settings alone, computed in fp64 as torch does."""
    first_correction = 1 - settings.beta1**settings.step
    second_correction = 1 - settings.beta2**settings.step
    numbers = (
        1 - settings.learning_rate * settings.weight_decay,
        1 - settings.beta1,
        settings.beta2,
        1 - settings.beta2,
        settings.learning_rate / first_correction,
        math.sqrt(second_correction),
        settings.epsilon,
    )
    return tuple(c_float(number) for number in numbers)
