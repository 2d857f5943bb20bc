"""The grids of `csrc/cuda/tiles.cuh`: work on each element of [rows, columns], and sums over the rows."""

from __future__ import annotations

from ctypes import c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.kernels.native.launching import Argument, KernelRunner, Launch

#: What a kernel's name ends in.
_SUFFIXES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
#: Of the widest access to memory.
VECTOR_BYTES = 16


def suffix(dtype: torch.dtype) -> str:
    """Return the suffix of the kernels for this dtype. Raises TypeError if there are none."""
    try:
        return _SUFFIXES[dtype]
    except KeyError:
        raise TypeError(f"kernels for {dtype}: there are those for {', '.join(map(str, _SUFFIXES))}") from None


def address(tensor: Tensor | None) -> c_void_p:
    """Return the address of a contiguous tensor's numbers, or null."""
    if tensor is None:
        return c_void_p(None)
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} for a kernel")
    return c_void_p(tensor.data_ptr())


def is_aligned(*tensors: Tensor | None) -> bool:
    """Return whether each tensor is aligned for the widest vectors."""
    return all(one is None or one.data_ptr() % VECTOR_BYTES == 0 for one in tensors)


_WARP_LANES = 32
_WARPS = 8
# Enough to fill any GPU twice; the more blocks share a column, the more partial sums there are to write and read.
_WANTED_BLOCKS = 2048
_FEWEST_ROWS = 32
_MOST_ROWS = 2**31


@dataclass(frozen=True)
class Tiles:
    """The division of rows and columns over a grid. The order of sums depends on the shape alone.

    width: neighbours of a row that one thread takes together. Raises ValueError for more than 2^31 - 1 rows.
    """

    rows: int
    columns: int
    width: int

    def __post_init__(self) -> None:
        if self.rows >= _MOST_ROWS:
            raise ValueError(f"{self.rows} rows for a kernel, where {_MOST_ROWS - 1} are the most")

    @staticmethod
    def of(x_rc: Tensor, *others: Tensor | None) -> Tiles:
        """Return the tiles of a matrix, or of all its rows; `others` have the same shape, or that of a row."""
        columns = x_rc.shape[-1]
        width = VECTOR_BYTES // x_rc.element_size()
        fits = columns % width == 0 and is_aligned(x_rc, *others)
        return Tiles(x_rc.numel() // max(1, columns), columns, width if fits else 1)

    @property
    def is_empty(self) -> bool:
        """There is nothing to do."""
        return self.rows == 0 or self.columns == 0

    @property
    def column_blocks(self) -> int:
        """Blocks side by side."""
        return -(-self.columns // (_WARP_LANES * self.width))

    @property
    def rows_per_block(self) -> int:
        """A block's range of rows."""
        blocks = max(1, min(_WANTED_BLOCKS // self.column_blocks, -(-self.rows // _FEWEST_ROWS)))
        return -(-self.rows // blocks)

    @property
    def row_blocks(self) -> int:
        """Blocks below each other: as many partial sums has each column."""
        return -(-self.rows // self.rows_per_block)

    def launch(self, kernel: str, *arguments: Argument) -> Launch:
        """Return the launch of a kernel over all of it."""
        grid = (self.column_blocks, self.row_blocks, 1)
        return Launch(kernel, grid, (_WARP_LANES * _WARPS, 1, 1), 0, arguments)

    def sizes(self) -> tuple[Argument, ...]:
        """rows, columns and rows per block, as kernels take them."""
        return c_int64(self.rows), c_int64(self.columns), c_int64(self.rows_per_block)

    def partials(self, device: torch.device) -> Tensor:
        """Return an unset buffer for the blocks' sums of columns: fp32 [row_blocks, columns]."""
        return torch.empty(self.row_blocks, self.columns, device=device)


def added_up(kernel: str, partials_pc: Tensor, dtype: torch.dtype, runner: KernelRunner) -> Tensor:
    """[columns], the sum of `Tiles.partials`; `kernel`: the name without its dtype."""
    parts, columns = partials_pc.shape
    total_c = torch.empty(columns, dtype=dtype, device=partials_pc.device)
    arguments = address(total_c), address(partials_pc), c_int64(parts), c_int64(columns)
    grid = (-(-columns // _WARP_LANES), 1, 1)
    runner.launch(Launch(f"{kernel}_{suffix(dtype)}", grid, (_WARP_LANES * _WARPS, 1, 1), 0, arguments))
    return total_c
