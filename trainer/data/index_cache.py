"""The cache of sample orders: files built by one rank and mapped by all.

A file's name contains a hash of everything that its content depends on, also the data's size and time, so a stale file
is never found. Two runs that build the same order write the same bytes to separate files and rename them.
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
from trainer.formats.json_text import json_file_text

Arrays = dict[str, NDArray[Any]]


class IndexCache:
    """A cache of built arrays. `folders` are tried in order; if none is writable, every rank builds its own arrays.

    keeps: save what is built, on one rank only.
    """

    def __init__(self, folders: list[Path], keeps: bool = True) -> None:
        self._folders, self._keeps = folders, keeps

    def load_or_build(self, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
        """Return the arrays for `description`, mapped read-only, or build (and with `keeps` save) them."""
        text, stem = _named(description)
        found = self._find(stem)
        if found is not None:
            return found[1]
        built = build()
        if self._keeps:
            self._keep(stem, text, built)
            found = self._find(stem)
        # Otherwise the folder is not shared or not writable here, and building again gives the same arrays.
        return built if found is None else found[1]

    def kept(self, description: Mapping[str, Any]) -> tuple[Path, Arrays] | None:
        """Return the listing and the arrays for `description`; None if they are not completely cached."""
        return self._find(_named(description)[1])

    def _find(self, stem: str) -> tuple[Path, Arrays] | None:
        for folder in self._folders:
            listing = folder / f"{stem}.json"
            with contextlib.suppress(OSError, ValueError, KeyError, EOFError):
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
                # The listing is written last: everything that it names is complete.
                listing = {"arrays": list(arrays), "made_from": json.loads(text)}
                write_atomically(folder / f"{stem}.json", json_file_text(listing))
                return
            except OSError as error:
                failures.append(f"{folder}: {error.strerror}")
        if failures:
            sys.stderr.write(
                f"warning: the sample order could not be saved ({'; '.join(failures)}), so every rank builds it at "
                "every start; give a writable --data-cache-path\n"
            )


def _named(description: Mapping[str, Any]) -> tuple[str, str]:
    """Return the description as text, and the common name of its files."""
    text = json.dumps(description, indent=1, sort_keys=True, default=str)
    return text, hashlib.sha256(text.encode()).hexdigest()[:32]


def _save(path: Path, array: NDArray[Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    fd = create_file(temporary)
    try:
        with os.fdopen(fd, "wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
