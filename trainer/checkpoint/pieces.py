"""Putting the part of a matrix that somebody wants together from the runs in which it is stored.

A parameter is a matrix here, a vector being one of a single column. Tensor ranks have some of its rows or columns
each, and of what one has, end to end, files hold runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.checkpoint.stored_tensors import StoredTensor

# Of a row's columns so many bytes are read by themselves; fewer together with what lies between them.
_WORTH_A_READ_BYTES = 1 << 14
_BUFFER_BYTES = 1 << 22


@dataclass(frozen=True)
class Box:
    """Rows and columns of a matrix, up to and without the ends."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.bottom - self.top

    @property
    def columns(self) -> int:
        """How many."""
        return self.right - self.left

    def within(self, other: Box) -> Box | None:
        """What both have, None where that is nothing."""
        top, bottom = max(self.top, other.top), min(self.bottom, other.bottom)
        left, right = max(self.left, other.left), min(self.right, other.right)
        return Box(top, bottom, left, right) if top < bottom and left < right else None

    def moved(self, down: int, along: int) -> Box:
        """The same box, counted from another corner."""
        return Box(self.top + down, self.bottom + down, self.left + along, self.right + along)


@dataclass(frozen=True)
class Run:
    """Elements `first` and on of a matrix, row after row, stored from element `start` of a tensor on.

    tensor: None where all of them are zero.
    """

    tensor: StoredTensor | None
    start: int
    first: int
    elements: int


def boxes_of_run(first: int, elements: int, columns: int) -> Iterator[Box]:
    """A run of a matrix' elements, row after row, as at most three boxes: end of a row, whole rows, begin of a row."""
    end = first + elements
    row, column = divmod(first, columns)
    if column or end < (row + 1) * columns:
        stop = min(end, (row + 1) * columns)
        yield Box(row, row + 1, column, stop - row * columns)
        row, first = row + 1, stop
    last = end // columns
    if row < last:
        yield Box(row, last, 0, columns)
    if last >= row and end > max(first, last * columns):
        yield Box(last, last + 1, 0, end - last * columns)


def fill(out: Tensor, wanted: Box, run: Run, columns: int) -> None:
    """Put into `out`, of `wanted`'s rows and columns, as much of it as the run has. columns: the stored matrix'."""
    for box in boxes_of_run(run.first, run.elements, columns):
        found = wanted.within(box)
        if found is not None:
            target = found.moved(-wanted.top, -wanted.left)
            if run.tensor is None:
                out[target.top : target.bottom, target.left : target.right] = 0
            else:
                _fill(out, run.tensor, run.start - run.first, columns, found, target)


def _fill(out: Tensor, stored: StoredTensor, origin: int, columns: int, found: Box, target: Box) -> None:
    """Put a box, all of which is stored, at its target in `out`. origin: where the matrix' first element would be."""

    def place(row: int) -> int:
        return origin + row * columns + found.left

    is_one_row = found.rows == 1
    if is_one_row or found.columns == columns == out.shape[1]:
        stored.read(place(found.top), out[target.top : target.bottom, target.left : target.right].reshape(-1))
    elif found.columns * stored.dtype.itemsize >= _WORTH_A_READ_BYTES and stored.reads_straight_into(out):
        for row in range(found.rows):
            stored.read(place(found.top + row), out[target.top + row, target.left : target.right])
    else:
        _fill_through_buffer(out, stored, columns, found, target, place(found.top))


def _fill_through_buffer(out: Tensor, stored: StoredTensor, columns: int, found: Box, target: Box, place: int) -> None:
    """Read some rows at a time with what lies between the wanted columns, and copy these."""
    step = min(found.rows, max(1, _BUFFER_BYTES // (columns * stored.dtype.itemsize)))
    buffer = torch.empty(step * columns, dtype=stored.dtype)
    for start in range(0, found.rows, step):
        rows = min(step, found.rows - start)
        # Nothing behind the last wanted element: it may not be stored.
        stored.read(place + start * columns, buffer[: (rows - 1) * columns + found.columns])
        block = buffer[: rows * columns].view(rows, columns)[:, : found.columns]
        out[target.top + start : target.top + start + rows, target.left : target.right].copy_(block)
