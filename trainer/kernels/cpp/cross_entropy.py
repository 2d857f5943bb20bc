"""Cross entropy by `csrc/cpu/cross_entropy.cpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}


class CppCrossEntropy:
    """`CrossEntropyKernels` of a CPU. Results do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._statistics = _functions(library, "statistics", pointers_before=2, pointers_behind=3)
        self._gradient = _functions(library, "gradient", pointers_before=4, pointers_behind=0)
        self._whole = _functions(library, "whole", pointers_before=3, pointers_behind=2)

    def statistics(self, logits_tv: Tensor, labels_t: Tensor, first_padding: int) -> tuple[Tensor, Tensor, Tensor]:
        """As `CrossEntropyKernels` has it."""
        tokens, rows = logits_tv.shape
        greatest_t, sum_t, label_logit_t = logits_tv.new_empty(3, tokens, dtype=torch.float32)
        self._statistics[logits_tv.dtype](
            _address(logits_tv, logits_tv.dtype),
            _address(labels_t, torch.int64),
            tokens,
            rows,
            min(first_padding, rows),
            *(one.data_ptr() for one in (greatest_t, sum_t, label_logit_t)),
        )
        return greatest_t, sum_t, label_logit_t

    def to_gradient(
        self, logits_tv: Tensor, labels_t: Tensor, log_sum_t: Tensor, share_t: Tensor, first_padding: int
    ) -> None:
        """As `CrossEntropyKernels` has it."""
        tokens, rows = logits_tv.shape
        self._gradient[logits_tv.dtype](
            _address(logits_tv, logits_tv.dtype),
            _address(labels_t, torch.int64),
            _address(log_sum_t, torch.float32),
            _address(share_t, torch.float32),
            tokens,
            rows,
            min(first_padding, rows),
        )

    def whole(self, logits_tv: Tensor, labels_t: Tensor, share_t: Tensor, first_padding: int) -> tuple[Tensor, Tensor]:
        """As `CrossEntropyKernels` has it."""
        tokens, rows = logits_tv.shape
        log_sum_t, label_logit_t = logits_tv.new_empty(2, tokens, dtype=torch.float32)
        self._whole[logits_tv.dtype](
            _address(logits_tv, logits_tv.dtype),
            _address(labels_t, torch.int64),
            _address(share_t, torch.float32),
            tokens,
            rows,
            min(first_padding, rows),
            log_sum_t.data_ptr(),
            label_logit_t.data_ptr(),
        )
        return log_sum_t, label_logit_t


def _functions(
    library: ctypes.CDLL, name: str, pointers_before: int, pointers_behind: int
) -> dict[torch.dtype, Callable[..., None]]:
    """One for each type of logits: pointers, three sizes, pointers."""
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    found: dict[torch.dtype, Callable[..., None]] = {}
    for dtype, suffix in _SUFFIXES.items():
        function = getattr(library, f"cross_entropy_{name}_{suffix}")
        function.restype = None
        function.argtypes = [*[pointer] * pointers_before, *[size] * 3, *[pointer] * pointers_behind]
        found[dtype] = function
    return found


def _address(tensor: Tensor, dtype: torch.dtype) -> int:
    """Raises ValueError for a tensor that the functions would read wrongly."""
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"cross entropy takes contiguous {dtype} on a CPU, not {tensor.dtype} on {tensor.device}")
    return tensor.data_ptr()
