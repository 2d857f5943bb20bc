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
    """Return the sum of a whole tensor as [] int64 on its device: each 8 bytes of memory make one word."""
    flat = tensor.detach().contiguous().view(-1)
    in_word = 8 // flat.element_size()
    words = flat.numel() // in_word
    total = _sum(flat[: words * in_word], 0, in_word)
    rest = flat[words * in_word :]
    return total + _sum(rest, words) if rest.numel() else total


def bits_of_part(part: Tensor, first: int) -> Tensor:
    """Return the contribution of the elements from `first` on to a parameter's sum: it is the same however the whole is
    cut.

    Each element is one word here.
    """
    return _sum(part.detach().contiguous().view(-1), first)


def _sum(flat: Tensor, first: int, in_word: int = 1) -> Tensor:
    """Return the sum of words of so many elements each, the first of which has the place `first`."""
    size, total = _CHUNK_WORDS[flat.device.type], flat.new_zeros((), dtype=torch.int64)
    word = _WORD[in_word * flat.element_size()]
    for start in range(0, flat.numel() // in_word, size):
        chunk = flat[start * in_word : (start + size) * in_word]
        if chunk.storage_offset() % in_word:  # DeepSpeed's flat buffers begin a parameter anywhere
            chunk = chunk.clone()
        words = chunk.view(word).to(torch.int64)
        total += (words * _odd_numbers(first + start, words.numel(), size, flat.device)).sum()
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
