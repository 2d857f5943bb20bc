"""Writing torch's files that are larger than memory: first all but the tensors' bytes, then these, part by part.

    file = StreamedFile()
    flat = file.tensor((elements,), torch.float32)
    file.fill(flat, 0, lambda: first_part)
    file.fill(flat, first_part_elements, lambda: second_part)
    file.write({"state": flat}, target)

It reads as what `torch.save` would have written of the filled tensors. What differs is the archive's own checksum of
each, which neither torch nor DeepSpeed looks at.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.stored_tensors import StoredTensors
from trainer.core.files import create_file
from trainer.formats.checkpoint.manifest import SavedFile, checksum

_NO_RESERVE = 0x4000  # Linux' MAP_NORESERVE: memory that is never touched need not be there


class StreamedFile:
    """One file to be, with tensors that take no memory. What is not filled of them is zero."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, int, Callable[[], Tensor]]] = []
        self._unfilled: set[int] = set()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool = False) -> Tensor:
        """One that stands for what `fill` gives."""
        size = math.prod(shape) * dtype.itemsize
        memory = mmap.mmap(-1, max(1, size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        found = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)) if size else torch.empty(0, dtype=dtype)
        found = found.view(shape).requires_grad_(requires_grad)
        self._unfilled.add(id(found))
        return found

    def fill(self, tensor: Tensor, first: int, values: Callable[[], Tensor]) -> None:
        """From element `first` on, row after row, `tensor` shall be what `values` gives, of its dtype."""
        self._parts.append((tensor, first, values))

    def write(self, contents: Any, target: Path) -> SavedFile:
        """Write `contents` to the new file `target`, which is still to be fsynced, asking for one part at a time.

        Raises OSError, and whatever a part's values raise.
        """
        os.close(create_file(target))
        with torch.serialization.skip_data():
            torch.save(contents, target)
        places = dict(_places(contents, StoredTensors(target).contents))
        descriptor = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for tensor, place in places.values():
                if id(tensor) not in self._unfilled:
                    _write(descriptor, place, tensor)
            for tensor, first, values in self._parts:
                _write(descriptor, places[id(tensor)][1] + first * tensor.element_size(), values())
        finally:
            os.close(descriptor)
        return SavedFile(target.stat().st_size, checksum(target))


def _places(contents: Any, stored: Any) -> Iterator[tuple[int, tuple[Tensor, int]]]:
    """Of every tensor in `contents` its id, itself, and at which byte of the file its own begin."""
    if isinstance(contents, Tensor):
        begin = stored.untyped_storage()._checkpoint_offset + stored.storage_offset() * stored.element_size()
        yield id(contents), (contents, begin)
    elif isinstance(contents, Mapping):
        for key, value in contents.items():
            yield from _places(value, stored[key])
    elif isinstance(contents, (list, tuple)):
        for value, beside in zip(contents, stored, strict=True):
            yield from _places(value, beside)


def _write(descriptor: int, place: int, values: Tensor) -> None:
    flat: Any = values.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    left = memoryview(flat)
    while left:
        count = os.pwrite(descriptor, left, place)
        place, left = place + count, left[count:]
