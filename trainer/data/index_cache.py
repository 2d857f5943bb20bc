"""Built indices as `.npy` files, made once by one rank and mapped by all.

A file's name holds a hash of all that its content hangs on, the data's size and time included, so a stale one is
never found. Two runs that build the same at once write the same, each beside and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.files import create_file, make_folder, write_atomically
from trainer.formats.index_header import bin_path, idx_path
from trainer.formats.json_text import json_file_text

Arrays = dict[str, NDArray[Any]]


def file_identity(prefix: str) -> dict[str, Any]:
    """What tells one version of a `.bin/.idx` pair from another."""
    found = {}
    for path in (bin_path(prefix), idx_path(prefix)):
        state = path.stat()
        found[path.suffix[1:]] = [state.st_size, state.st_mtime_ns]
    return {"prefix": str(Path(prefix).resolve()), **found}


class IndexCache:
    """Where built arrays are kept. `folders` are tried in turn; with none writable, every rank builds for itself."""

    def __init__(self, folders: list[Path], is_builder: bool, barrier: Callable[[], None]):
        self._folders, self._is_builder, self._barrier = folders, is_builder, barrier

    def load_or_build(self, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
        """The arrays for `description`, mapped read-only from the cache; built and kept by the builder when missing.

        Every rank has to call this in the same order: there is one barrier inside, also when building fails.
        """
        text, stem = _named(description)
        built: Arrays | None = None
        try:
            if self._is_builder and self._find(stem) is None:
                built = build()
                self._keep(stem, text, built)
        finally:
            self._barrier()
        found = self._find(stem)
        if found is not None:
            return found[1]
        # The folder is not shared or not writable here: the same arrays come out of building them again.
        return built if built is not None else build()

    def kept(self, description: Mapping[str, Any]) -> tuple[Path, Arrays] | None:
        """The listing of the arrays for `description` and they themselves; None where they are not kept whole."""
        return self._find(_named(description)[1])

    def _find(self, stem: str) -> tuple[Path, Arrays] | None:
        for folder in self._folders:
            listing = folder / f"{stem}.json"
            with contextlib.suppress(OSError, ValueError, KeyError):
                names = json.loads(listing.read_text())["arrays"]
                mapped = {name: np.load(folder / f"{stem}-{name}.npy", mmap_mode="r") for name in names}
                return listing, {name: array.view(np.ndarray) for name, array in mapped.items()}
        return None

    def _keep(self, stem: str, text: str, arrays: Arrays) -> None:
        failures = []
        for folder in self._folders:
            try:
                make_folder(folder)
                for name, array in arrays.items():
                    _save(folder / f"{stem}-{name}.npy", array)
                # The listing comes last: what it names is whole.
                listing = {"arrays": list(arrays), "made_from": json.loads(text)}
                write_atomically(folder / f"{stem}.json", json_file_text(listing))
                return
            except OSError as error:
                failures.append(f"{folder}: {error.strerror}")
        if failures:
            sys.stderr.write(
                f"warning: the sample order could not be kept ({'; '.join(failures)}), so every rank builds it at "
                "every start; give a writable --data-cache-path\n"
            )


def _named(description: Mapping[str, Any]) -> tuple[str, str]:
    """The description as text, and what files of it are called."""
    text = json.dumps(description, indent=1, sort_keys=True, default=str)
    return text, hashlib.sha256(text.encode()).hexdigest()[:32]


def _save(path: Path, array: NDArray[Any]) -> None:
    beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    fd = create_file(beside)
    try:
        with os.fdopen(fd, "wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
