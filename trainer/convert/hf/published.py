"""Reading a published model's folder: its configuration, and its tensors one by one from whichever files it has."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.checkpoint.read import read_data
from trainer.checkpoint.stored_tensors import unreadable
from trainer.convert.hf.tensor_file import INDEX, WHOLE, TensorEntry, read_tensor_file
from trainer.core.files import read_plain
from trainer.formats.errors import CheckpointError

CONFIG = "config.json"
_PICKLED = "pytorch_model.bin"
_PICKLED_INDEX = "pytorch_model.bin.index.json"
_LARGEST_JSON_BYTES = 1 << 26


class PublishedModel:
    """A folder as transformers saves one. Raises CheckpointError for what is none, here and in every method."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / CONFIG)
        self._file_of = dict(_tensor_files(folder))
        self._pickled: tuple[str, Mapping[str, Tensor]] = ("", {})

    @property
    def names(self) -> list[str]:
        """Of all tensors."""
        return list(self._file_of)

    def described(self) -> Iterator[TensorEntry]:
        """Shape and type of every tensor. Of safetensors nothing but headers is read."""
        for file in dict.fromkeys(self._file_of.values()):
            path = self.folder / file
            if path.suffix == ".safetensors":
                yield from (entry for entry in read_tensor_file(path).entries if self._file_of.get(entry.name) == file)
                continue
            for name, one in self._unpickled(path).items():
                if self._file_of.get(name) == file:
                    yield TensorEntry(name, tuple(one.shape), one.dtype)

    def tensor(self, name: str) -> Tensor:
        """One tensor as it is there."""
        path = self.folder / self._file_of[name]
        if path.suffix == ".safetensors":
            with _opened(path) as tensors:
                read: Tensor = _found(tensors.get_tensor, name, path)
                return read
        tensors = self._unpickled(path)
        if name not in tensors:
            raise CheckpointError(f"{path} has no {name!a}, which its index says it has")
        return tensors[name]

    def _unpickled(self, path: Path) -> Mapping[str, Tensor]:
        if self._pickled[0] != path.name:
            self._pickled = ("", {})  # one such file at a time
            self._pickled = (path.name, _read_pickled(path))
        return self._pickled[1]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError."""
    try:
        value = json.loads(read_plain(path, _LARGEST_JSON_BYTES))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}: give a folder that transformers loads from") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__} instead of an object")
    return value


def _tensor_files(folder: Path) -> Iterator[tuple[str, str]]:
    """(tensor's name, file's name); safetensors where there are both."""
    for index, whole in ((INDEX, WHOLE), (_PICKLED_INDEX, _PICKLED)):
        if (folder / index).is_file():
            yield from _indexed(folder / index)
            return
        if (folder / whole).is_file():
            yield from ((name, whole) for name in _names_in(folder / whole))
            return
    raise CheckpointError(f"{folder} has no weights: expected {WHOLE}, {INDEX}, {_PICKLED} or {_PICKLED_INDEX}")


def _indexed(index: Path) -> Iterator[tuple[str, str]]:
    mapped = read_json(index).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise CheckpointError(f"{index} has no weight_map")
    for name, file in mapped.items():
        # Whoever made it chose these names: none may lead out of its folder.
        if not isinstance(file, str) or Path(file).name != file or not file.isprintable():
            raise CheckpointError(f"{index} names {file!a}, which is no file of the folder")
        if not (index.parent / file).is_file():
            raise CheckpointError(f"{index} names {file}, which is not there")
        yield name, file


def _names_in(path: Path) -> list[str]:
    if path.suffix == ".safetensors":
        return [entry.name for entry in read_tensor_file(path).entries]
    return list(_read_pickled(path))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _found(get: Any, name: str, path: Path) -> Any:
    try:
        return get(name)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: {name!a} cannot be read: {str(error).splitlines()[0]}") from None


def _read_pickled(path: Path) -> Mapping[str, Tensor]:
    try:
        tensors = read_data(str(path), "cpu")
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise unreadable(path, error) from None
    if not isinstance(tensors, dict) or not all(map(_is_plain, tensors, tensors.values())):
        raise CheckpointError(f"{path} is no table of plain tensors by name")
    return tensors


def _is_plain(name: object, one: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(one, Tensor)
        and one.layout == torch.strided
        and one.device.type == "cpu"
        and not (one.is_quantized or one.is_nested)
    )
