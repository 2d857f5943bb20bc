"""What all launches have in common: how a tensor is handed to a kernel, and which kernel its dtype has."""

from __future__ import annotations

from ctypes import c_void_p

import torch
from torch import Tensor

#: What a kernel's name ends in.
_SUFFIXES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
#: Of the widest access to memory.
VECTOR_BYTES = 16


def suffix(dtype: torch.dtype) -> str:
    """Of the kernels for this dtype. Raises TypeError where there are none."""
    try:
        return _SUFFIXES[dtype]
    except KeyError:
        raise TypeError(f"kernels for {dtype}: there are those for {', '.join(map(str, _SUFFIXES))}") from None


def address(tensor: Tensor | None) -> c_void_p:
    """Where a contiguous tensor's numbers are, or null."""
    if tensor is None:
        return c_void_p(None)
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} for a kernel")
    return c_void_p(tensor.data_ptr())


def is_aligned(*tensors: Tensor | None) -> bool:
    """Whether each begins where the widest vectors may."""
    return all(one is None or one.data_ptr() % VECTOR_BYTES == 0 for one in tensors)
