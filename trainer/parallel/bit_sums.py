"""Sums of bit patterns that tell whether ranks hold the same numbers: whole numbers, so their order does not matter.

Each word of a tensor's memory is multiplied by an odd number that its place gives, and all are added modulo 2^64. One
flipped bit always changes such a sum; of other differences, a share of about 2^-60 goes unseen.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

# Words taken at once: few enough that the products of a chunk stay in a processor's cache.
_CHUNK_WORDS = {"cpu": 1 << 16, "cuda": 1 << 22}
_WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Odd numbers without a pattern (from the splitmix64 generator), as signed 64-bit numbers.
_FIRST, _SECOND = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9


def bits_of(tensor: Tensor) -> Tensor:
    """The sum of a whole tensor as [] int64 on its device: 8 bytes of memory at a time make one word."""
    flat = tensor.detach().contiguous().view(-1)
    words_in = 8 // flat.element_size()
    whole = flat.numel() // words_in * words_in
    total = _sum(flat[:whole].view(torch.int64), 0) if whole else flat.new_zeros((), dtype=torch.int64)
    rest = flat[whole:].view(_WORD[flat.element_size()]).to(torch.int64)
    return total + _sum(rest, whole // words_in) if rest.numel() else total


def bits_of_part(part: Tensor, first: int) -> Tensor:
    """What the elements from `first` on of a parameter add to its sum: parts that make up the same whole add up alike.

    Each element is one word here, wherever the parts are cut.
    """
    flat = part.detach().contiguous().view(-1)
    return _sum(flat.view(_WORD[flat.element_size()]).to(torch.int64), first)


def _sum(words: Tensor, first: int) -> Tensor:
    size = _CHUNK_WORDS[words.device.type]
    total = words.new_zeros(())
    for start in range(0, words.numel(), size):
        chunk = words[start : start + size]
        total += (chunk * _odd_numbers(first + start, chunk.numel(), size, words.device)).sum()
    return total


def _odd_numbers(first: int, count: int, size: int, device: torch.device) -> Tensor:
    """Those of `count` places from `first` on."""
    if first % size:
        return _made(first, count, device)
    return _of_chunk(size, device)[:count] * _odd(first // size)


@functools.lru_cache(maxsize=4)
def _of_chunk(size: int, device: torch.device) -> Tensor:
    return _made(0, size, device)


def _made(first: int, count: int, device: torch.device) -> Tensor:
    size = _CHUNK_WORDS[device.type]
    places = torch.arange(first, first + count, device=device)
    chunks = (places // size) * (2 * _SECOND) + 1
    places = (places % size + 1) * _FIRST
    return ((places ^ (places >> 31)) | 1) * chunks


def _odd(chunk: int) -> int:
    """As `_made` has it for a chunk, as a signed 64-bit number."""
    wrapped = (chunk * 2 * _SECOND + 1) % (1 << 64)
    return wrapped - (1 << 64) if wrapped >= 1 << 63 else wrapped
