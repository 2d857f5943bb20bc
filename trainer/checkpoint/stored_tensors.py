"""Tensors in a checkpoint's file, read a run of elements at a time: what is not asked for is not read.

`torch.load(mmap=True)` would map whole files into every rank, which counts as the rank's memory and goes page by page
on network file systems. Here a file is unpickled with its tensors on the meta device, which reads none of their bytes
and says where each one's begin; `preadv` then puts them straight where they belong.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.read import read_data
from trainer.formats.errors import CheckpointError

# Elements are converted, and brought to a GPU, through a buffer of this size.
_BUFFER_BYTES = 1 << 22
# From here on the disk is told of the whole run before its first byte is waited for.
_WORTH_ASKING_AHEAD_BYTES = 1 << 19


class StoredTensors:
    """One file that torch has saved: its `contents`, with tensors that have shapes and dtypes but no data.

    Raises CheckpointError, one line, for a file that cannot be read or holds more than data.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._descriptor = path, -1
        try:
            self.contents: Any = read_data(str(path), "meta")
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._bytes = os.fstat(self._descriptor).st_size
        except (OSError, EOFError, KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise unreadable(path, error) from None

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def mapping(self, *keys: str) -> Mapping[Any, Any]:
        """The mapping under these keys of the contents. Raises CheckpointError where there is none."""
        found = self.contents
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise CheckpointError(f"{self.path} has no {'.'.join(keys) or 'mapping'}: it is not what it is called")
        return found

    def tensor(self, found: Any, what: str, elements: int, dtype: torch.dtype) -> StoredTensor:
        """What was found in the contents, as a flat tensor of at least so many elements.

        Raises CheckpointError, with both values, where it is another.
        """
        wanted = f"{elements} elements of {dtype}"
        if not isinstance(found, Tensor):
            raise CheckpointError(f"{self.path}: {what} is missing, {wanted} belong there")
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
            raise CheckpointError(f"{self.path} has {self._bytes} bytes and {what} ends at {end}: it was cut short")
        return StoredTensor(self, begin, dtype)

    def read(self, begin: int, out: memoryview) -> None:
        """Fill `out` with the bytes from `begin` on. Raises CheckpointError."""
        try:
            if len(out) >= _WORTH_ASKING_AHEAD_BYTES:
                os.posix_fadvise(self._descriptor, begin, len(out), os.POSIX_FADV_WILLNEED)
            while out:
                count = os.preadv(self._descriptor, [out], begin)
                if not count:
                    raise CheckpointError(f"{self.path} ends at byte {begin}: it was cut short")
                begin, out = begin + count, out[count:]
        except OSError as error:
            raise unreadable(self.path, error) from None


class StoredTensor:
    """One tensor's place in a file."""

    def __init__(self, file: StoredTensors, begin: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._file, self._begin = file, begin

    def reads_straight_into(self, out: Tensor) -> bool:
        """Whether the file's bytes go where they are wanted without a copy between."""
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
    """That the file at `path` cannot be read, in one line."""
    reason = error.strerror if isinstance(error, OSError) else (str(error).splitlines() or [type(error).__name__])[0]
    return CheckpointError(f"{path} cannot be read: {reason}")
