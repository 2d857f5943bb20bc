"""Calling functions of `csrc/cpu`: one for each type of element, tensors by where they begin."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
        """The first argument, a tensor, says of which type the elements are. Raises MemoryError."""
        taken = [one.data_ptr() if isinstance(one, Tensor) else one for one in arguments]
        if self._functions[arguments[0].dtype](*taken):
            raise MemoryError(f"no memory for what the threads of {self._name} work in: use smaller micro-batches")


#: A tensor, or None.
TENSOR = ctypes.c_void_p
SIZE = ctypes.c_int64
NUMBER = ctypes.c_float
SIZES = ctypes.POINTER(ctypes.c_int64)
