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

from trainer.core.files import create_file, make_folder, write_atomically
from trainer.data.node_cache import NodeCache
from trainer.formats.json_text import json_file_text

Arrays = dict[str, NDArray[Any]]


class IndexCache:
    """Where built arrays are kept. `folders` are tried in turn; with none writable, every rank builds for itself.

    keeps: whether what is built here is kept, which one rank of all does. node: maps its own copies.
    """

    def __init__(self, folders: list[Path], keeps: bool = True, node: NodeCache | None = None) -> None:
        self._folders, self._keeps, self._node = folders, keeps, node or NodeCache(None)

    def load_or_build(self, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
        """The arrays for `description`, mapped read-only from the cache; built, and kept by who keeps, when missing."""
        text, stem = _named(description)
        found = self._find(stem)
        if found is not None:
            return found[1]
        built = build()
        if self._keeps:
            self._keep(stem, text, built)
            found = self._find(stem)
        # Else the folder is not shared or not writable here: the same arrays came out of building them again.
        return built if found is None else found[1]

    def kept(self, description: Mapping[str, Any]) -> tuple[Path, Arrays] | None:
        """The listing of the arrays for `description` and they themselves; None where they are not kept whole."""
        return self._find(_named(description)[1])

    def _find(self, stem: str) -> tuple[Path, Arrays] | None:
        for folder in self._folders:
            listing = folder / f"{stem}.json"
            with contextlib.suppress(OSError, ValueError, KeyError, EOFError):
                names = json.loads(listing.read_text())["arrays"]
                local = {name: self._node.local(folder / f"{stem}-{name}.npy") for name in names}
                mapped = {name: np.load(path, mmap_mode="r") for name, path in local.items()}
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
