"""What all launches have in common: how a tensor is handed to a kernel, and which kernel its dtype has."""

from __future__ import annotations

from ctypes import c_int32, c_void_p

import torch
from torch import Tensor

#: What a kernel's name ends in.
_SUFFIXES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
#: Of the widest access to memory.
VECTOR_BYTES = 16
_YES, _NO = c_int32(1), c_int32(0)


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


def begins(*tensors: Tensor | None) -> list[int]:
    """Where each contiguous tensor's numbers are, 0 for None: for who asks more of them than one `address` each."""
    for one in tensors:
        if one is not None and not one.is_contiguous():
            raise ValueError(f"a tensor of shape {tuple(one.shape)} and strides {one.stride()} for a kernel")
    return [0 if one is None else one.data_ptr() for one in tensors]


def are_aligned(joined: int) -> bool:
    """Whether all addresses, joined by `|`, are where the widest vectors may begin."""
    return joined % VECTOR_BYTES == 0


def flag(value: bool) -> c_int32:
    """A kernel's yes or no."""
    return _YES if value else _NO


def is_aligned(*tensors: Tensor | None) -> bool:
    """Whether each begins where the widest vectors may."""
    return all(one is None or one.data_ptr() % VECTOR_BYTES == 0 for one in tensors)
