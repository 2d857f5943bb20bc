"""Reading of a checkpoint's files as plain data: any part of any tensor, from the ranges in which it is stored.

A pickle can make its reader call anything, and a run's folder is shared. Therefore only tensors, plain values and the
few classes that DeepSpeed writes next to the optimizer's states are created.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Tensor

from trainer.formats.errors import CheckpointError

#: torch's error for classes that it does not create.
_REFUSED = re.compile(r"(?:GLOBAL|WeightsUnpickler error:) (\S+)")


def _member(of: Any, name: str) -> Any:
    """Return the member of an enum for a pickled `getattr`; refuse all other names."""
    if of is not ZeroStageEnum or name not in ZeroStageEnum.__members__:
        raise pickle.UnpicklingError("builtins.getattr")
    return ZeroStageEnum[name]


_CLASSES: list[Any] = [
    LossScaler,
    DynamicLossScaler,
    ZeroStageEnum,
    fragment_address,
    (_member, "builtins.getattr"),
]


def read_data(path: str, map_location: Any = None) -> Any:
    """Read a file of `torch.save`. Raises OSError, RuntimeError, EOFError, and ValueError if it is not plain data.

    In DeepSpeed's terms this is the `load` of a checkpoint engine.
    """
    try:
        with torch.serialization.safe_globals(_CLASSES):
            return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        found = _REFUSED.search(str(error))
        what = f" (it refers to {found[1]})" if found else ""
        raise ValueError(f"{path} is not plain data{what}, so it is not read: check its owner") from None


_CANNOT_READ = (OSError, EOFError, KeyError, RuntimeError, TypeError, ValueError, AttributeError)


def read_whole(path: Path) -> Any:
    """Read a small file of torch's, with its tensors. Raises CheckpointError."""
    try:
        return read_data(str(path), "cpu")
    except _CANNOT_READ as error:
        raise unreadable(path, error) from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a small file of torch's with a dictionary. Raises CheckpointError."""
    found = read_whole(path)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} has contents that do not match its name")
    return found


# Elements are converted, and copied to a GPU, through a buffer of this size.
_BUFFER_BYTES = 1 << 22
# From this size on, the kernel is asked to read the whole run ahead.
_WORTH_ASKING_AHEAD_BYTES = 1 << 19


class StoredTensors:
    """One file that torch has saved: its `contents`, with tensors that have shapes and dtypes but no data.

    Raises CheckpointError, one line, for a file that cannot be read or is not plain data.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._descriptor = path, -1
        try:
            self.contents: Any = read_data(str(path), "meta")
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._bytes = os.fstat(self._descriptor).st_size
        except _CANNOT_READ as error:
            raise unreadable(path, error) from None

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def mapping(self, *keys: str) -> Mapping[Any, Any]:
        """Return the mapping under these keys of the contents. Raises CheckpointError if there is none."""
        found = self.contents
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise CheckpointError(f"{self.path} has no {'.'.join(keys) or 'mapping'}: its contents do not fit its name")
        return found

    def tensor(self, found: Any, what: str, elements: int, dtype: torch.dtype) -> StoredTensor:
        """Return an object of the contents as a flat tensor of at least so many elements.

        Raises CheckpointError, with both values, if it is something else.
        """
        wanted = f"{elements} elements of {dtype}"
        if not isinstance(found, Tensor):
            raise CheckpointError(f"{self.path}: {what} is missing, expected {wanted}")
        if found.dtype != dtype or found.numel() < elements or not found.is_contiguous():
            raise CheckpointError(
                f"{self.path}: {what} has {found.numel()} elements of {found.dtype} instead of {wanted}"
            )
        begin = getattr(found.untyped_storage(), "_checkpoint_offset", None)
        if begin is None:
            raise CheckpointError(f"{self.path} is in torch's format of before 2020, which this trainer does not read")
        begin += found.storage_offset() * found.element_size()
        end = begin + found.numel() * found.element_size()
        if end > self._bytes:
            raise CheckpointError(f"{self.path} has {self._bytes} bytes and {what} ends at {end}: it is truncated")
        return StoredTensor(self, begin, dtype)

    def read(self, begin: int, out: memoryview) -> None:
        """Fill `out` with the bytes from `begin` on. Raises CheckpointError."""
        try:
            if len(out) >= _WORTH_ASKING_AHEAD_BYTES:
                os.posix_fadvise(self._descriptor, begin, len(out), os.POSIX_FADV_WILLNEED)
            while out:
                count = os.preadv(self._descriptor, [out], begin)
                if not count:
                    raise CheckpointError(f"{self.path} ends at byte {begin}: it is truncated")
                begin, out = begin + count, out[count:]
        except OSError as error:
            raise unreadable(self.path, error) from None


class StoredTensor:
    """The place of one tensor in a file."""

    def __init__(self, file: StoredTensors, begin: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._file, self._begin = file, begin

    def reads_straight_into(self, out: Tensor) -> bool:
        """Return True if the file's bytes can be read without an intermediate copy."""
        return out.dtype == self.dtype and out.device.type == "cpu"

    def read(self, first: int, out: Tensor) -> None:
        """Fill the flat `out` with the elements from `first` on, converted to its dtype. Raises CheckpointError."""
        if self.reads_straight_into(out):
            self._read(first, out)
            return
        step = _BUFFER_BYTES // self.dtype.itemsize
        buffer = torch.empty(min(step, out.numel()), dtype=self.dtype)
        for start in range(0, out.numel(), step):
            part = out[start : start + step]
            self._read(first + start, buffer[: part.numel()])
            part.copy_(buffer[: part.numel()])

    def _read(self, first: int, out: Tensor) -> None:
        if out.numel():
            view = memoryview(out.detach().view(torch.uint8).numpy().data)
            self._file.read(self._begin + first * self.dtype.itemsize, view)


def unreadable(path: Path, error: Exception) -> CheckpointError:
    """Return the error for a file that cannot be read, in one line."""
    reason = error.strerror if isinstance(error, OSError) else (str(error).splitlines() or [type(error).__name__])[0]
    return CheckpointError(f"{path} cannot be read: {reason}")


# Smallest number of bytes of a row that is read separately. Fewer are read with the data between them.
_WORTH_A_READ_BYTES = 1 << 14
_ROWS_BUFFER_BYTES = 1 << 22


@dataclass(frozen=True)
class Box:
    """A range of rows and columns of a matrix, without the ends."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.bottom - self.top

    @property
    def columns(self) -> int:
        """The number of columns."""
        return self.right - self.left

    def within(self, other: Box) -> Box | None:
        """Return the intersection; None if it is empty."""
        top, bottom = max(self.top, other.top), min(self.bottom, other.bottom)
        left, right = max(self.left, other.left), min(self.right, other.right)
        return Box(top, bottom, left, right) if top < bottom and left < right else None

    def moved(self, down: int, along: int) -> Box:
        """Return the same box, relative to another corner."""
        return Box(self.top + down, self.bottom + down, self.left + along, self.right + along)


@dataclass(frozen=True)
class Run:
    """A range of a matrix' elements in row order, from `first`, stored from element `start` of a tensor on.

    tensor: None if all of them are zero.
    """

    tensor: StoredTensor | None
    start: int
    first: int
    elements: int


def boxes_of_run(first: int, elements: int, columns: int) -> Iterator[Box]:
    """Split a range of elements into at most three boxes: end of a row, whole rows, start of a row."""
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
    """Copy into `out`, which is `wanted`, the elements that the run has. columns: of the stored matrix."""
    for box in boxes_of_run(run.first, run.elements, columns):
        found = wanted.within(box)
        if found is not None:
            target = found.moved(-wanted.top, -wanted.left)
            if run.tensor is None:
                out[target.top : target.bottom, target.left : target.right] = 0
            else:
                _fill_box(out, run.tensor, run.start - run.first, columns, found, target)


def _fill_box(out: Tensor, stored: StoredTensor, origin: int, columns: int, found: Box, target: Box) -> None:
    """Copy a box that is wholly stored to its target in `out`. origin: position of the matrix' first element."""

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
    """Read some rows at a time, with the data between the wanted columns, and copy these."""
    step = min(found.rows, max(1, _ROWS_BUFFER_BYTES // (columns * stored.dtype.itemsize)))
    buffer = torch.empty(step * columns, dtype=stored.dtype)
    for start in range(0, found.rows, step):
        rows = min(step, found.rows - start)
        # Nothing after the last wanted element: it may not be stored.
        stored.read(place + start * columns, buffer[: (rows - 1) * columns + found.columns])
        block = buffer[: rows * columns].view(rows, columns)[:, : found.columns]
        out[target.top + start : target.top + start + rows, target.left : target.right].copy_(block)
