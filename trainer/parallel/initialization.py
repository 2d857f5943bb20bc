"""Initial weights that depend on the seed and the parameter alone, whatever the layout."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

# Rows are drawn in blocks of about this many elements, each with a seed of its own: a rank draws only what it holds.
_BLOCK_ELEMENTS = 1 << 20


def initial_weight(
    name: str,
    shape: tuple[int, ...],
    std: float,
    seed: int,
    dim: int = 0,
    first: int = 0,
    count: int | None = None,
    drawn_rows: int | None = None,
) -> Tensor:
    """`count` rows (dim 0) or columns (dim 1) from `first` on of the fp32 weight `name` of `shape`, from N(0, std).

    Only the first `drawn_rows` of the whole weight are drawn, when that is given, and those do not depend on how many
    more rows there are: these are 0.
    """
    rows, columns = shape
    drawn = rows if drawn_rows is None else drawn_rows
    count = shape[dim] - first if count is None else count
    wanted_rows = range(min(first, drawn), min(first + count, drawn)) if dim == 0 else range(rows)
    block_rows = max(1, _BLOCK_ELEMENTS // columns)
    weight = torch.zeros((count, columns) if dim == 0 else (rows, count))
    for block_start in range(wanted_rows.start // block_rows * block_rows, wanted_rows.stop, block_rows):
        block_stop = min(block_start + block_rows, drawn)
        generator = torch.Generator().manual_seed(seed_of(seed, name, block_start))
        block = torch.empty(block_stop - block_start, columns).normal_(0.0, std, generator=generator)
        low, high = max(block_start, wanted_rows.start), min(block_stop, wanted_rows.stop)
        part = block[low - block_start : high - block_start]
        weight[low - wanted_rows.start : high - wanted_rows.start] = (
            part if dim == 0 else part[:, first : first + count]
        )
    return weight


def seed_of(*parts: int | str) -> int:
    """Return a 63-bit seed from the names of a random stream."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
