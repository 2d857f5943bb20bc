"""safetensors files: splitting a model, writing tensor by tensor, and reading headers.

A file is 8 bytes with the header's size, the header (JSON: name to dtype, shape and the bytes' begin and end after the
header), and the tensors in order. The header comes first and follows from shapes alone, so only one tensor at a time
must be in memory. Format: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.core.files import create_file
from trainer.formats.errors import CheckpointError

#: The format's names of the weights' types.
CODES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
_ALIGNMENT = 8


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a planned file."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """The bytes in the file."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class TensorFile:
    """One file: its name, and its tensors in order."""

    name: str
    entries: tuple[TensorEntry, ...]

    @property
    def header(self) -> bytes:
        """The bytes before the first tensor."""
        described: dict[str, object] = {"__metadata__": {"format": "pt"}}  # which transformers requires
        begin = 0
        for entry in self.entries:
            offsets = [begin, begin + entry.bytes]
            described[entry.name] = {
                "dtype": CODES[entry.dtype],
                "shape": list(entry.shape),
                "data_offsets": offsets,
            }
            begin += entry.bytes
        text = json.dumps(described, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return struct.pack("<Q", len(text)) + text

    @property
    def bytes(self) -> int:
        """The bytes of the whole file."""
        return len(self.header) + sum(entry.bytes for entry in self.entries)


def divided(entries: Sequence[TensorEntry], file_bytes: int) -> list[TensorFile]:
    """Split a model into files in the order of its tensors, with transformers' names.

    Each has at most `file_bytes` of tensors, unless one alone is larger.
    """
    groups = list(_groups(entries, file_bytes))
    if len(groups) == 1:
        return [TensorFile(WHOLE, tuple(groups[0]))]
    names = (f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1))
    return [TensorFile(name, tuple(group)) for name, group in zip(names, groups, strict=True)]


def _groups(entries: Sequence[TensorEntry], file_bytes: int) -> Iterator[list[TensorEntry]]:
    group: list[TensorEntry] = []
    for entry in entries:
        if group and sum(one.bytes for one in group) + entry.bytes > file_bytes:
            yield group
            group = []
        group.append(entry)
    yield group


def index_of(files: Sequence[TensorFile]) -> dict[str, object]:
    """Return the contents of `INDEX` for several files."""
    entries = [entry for file in files for entry in file.entries]
    return {
        "metadata": {
            "total_parameters": sum(entry.size for entry in entries),
            "total_size": sum(entry.bytes for entry in entries),
        },
        "weight_map": {entry.name: file.name for file in files for entry in file.entries},
    }


def write_tensors(folder: Path, file: TensorFile, tensor: Callable[[str], Tensor]) -> Iterator[int]:
    """Write and fsync a new file; yield the bytes of each tensor written.

    tensor: returns each by name when it is due. Raises OSError.
    """
    with os.fdopen(create_file(folder / file.name), "wb") as sink:
        sink.write(file.header)
        for entry in file.entries:
            _write_tensor(sink, entry, tensor(entry.name))
            yield entry.bytes
        sink.flush()
        os.fsync(sink.fileno())


def _write_tensor(sink: IO[bytes], entry: TensorEntry, tensor: Tensor) -> None:
    if tuple(tensor.shape) != entry.shape or tensor.dtype != entry.dtype:
        raise ValueError(f"{entry.name} is {tensor.dtype} {tuple(tensor.shape)}, not {entry.dtype} {entry.shape}")
    contents: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    sink.write(memoryview(contents))


def read_tensor_file(path: Path) -> TensorFile:
    """Read a file's header, its tensors by name. Raises CheckpointError if the file is incomplete."""
    try:
        with safe_open(path, framework="pt") as tensors:
            names: list[str] = tensors.keys()
            parts = {name: tensors.get_slice(name) for name in names}
            entries = tuple(TensorEntry(name, tuple(one.get_shape()), _dtype(one)) for name, one in parts.items())
            return TensorFile(path.name, entries)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _dtype(part: Any) -> torch.dtype:
    code = part.get_dtype()
    found = next((dtype for dtype, known in CODES.items() if known == code), None)
    if found is None:
        raise ValueError(f"it has tensors of type {code}, the trainer supports {', '.join(CODES.values())}")
    return found
