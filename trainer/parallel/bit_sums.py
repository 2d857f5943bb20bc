"""Sums of bit patterns that tell whether ranks hold the same numbers: whole numbers, so their order does not matter.

Each number's bits are multiplied by an odd number that its place gives, and all are added modulo 2^64. One flipped bit
always changes such a sum; of other differences, a share of about 2^-60 goes unseen.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

# Numbers taken at once: few enough that the products of a chunk stay in a processor's cache.
_CHUNK = {"cpu": 1 << 16, "cuda": 1 << 22}
_WORD = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Odd numbers without a pattern (from the splitmix64 generator), as signed 64-bit numbers.
_FIRST, _SECOND = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9


def bits_of(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's bit patterns as [] int64 on its device."""
    words = tensor.detach().contiguous().view(-1).view(_WORD[tensor.element_size()])
    size, total = _CHUNK[tensor.device.type], words.new_zeros((), dtype=torch.int64)
    for number, chunk in enumerate(words.split(size)):
        of_chunk = (chunk.to(torch.int64) * _odd_numbers(size, tensor.device)[: len(chunk)]).sum()
        total += of_chunk * _signed(2 * number * _SECOND + 1)
    return total


@functools.lru_cache(maxsize=4)
def _odd_numbers(count: int, device: torch.device) -> Tensor:
    places = torch.arange(1, count + 1, device=device) * _FIRST
    return (places ^ (places >> 31)) | 1


def _signed(number: int) -> int:
    """Return a number modulo 2^64 as a signed 64-bit number."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
