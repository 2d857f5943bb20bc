"""Folders to walk through, and what is found in them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from opsctl.core.dirwalk.sequential import ITSELF, Folder, Visitor, under


class Noting(Visitor[list[str]]):
    """A visitor that notes every place that it is shown."""

    def __init__(self, stays_out: Sequence[str] = ()) -> None:
        self.stays_out = stays_out
        self.places: list[str] = []

    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        assert os.path.samestat(seen, os.stat(name, dir_fd=folder.fd, follow_symlinks=False))
        self.places.append(name if name == ITSELF else under(folder.place, name))

    def goes_into(self, folder: Folder, name: str) -> bool:
        return under(folder.place, name) not in self.stays_out

    def take(self) -> list[str]:
        found, self.places = self.places, []
        return found


class Places(Counter[str]):
    """How often each place was seen, by all that was taken in."""

    def take_in(self, places: list[str]) -> None:
        self.update(places)


def grow(root: Path, folders: int, files: int) -> None:
    """`folders` folders, every third one in the one before it, and `files` files in each."""
    folder = root
    for number in range(folders):
        folder = (folder if number % 3 else root) / f"folder{number}"
        folder.mkdir(parents=True)
        for file in range(files):
            (folder / f"file{file}").touch()


def there(root: Path) -> set[str]:
    """Every place under `root` as Python's own walk finds them, with the root."""
    found = {ITSELF}
    for folder, folders, files in os.walk(root):
        place = os.path.relpath(folder, root)
        found |= {name if place == "." else f"{place}/{name}" for name in (*folders, *files)}
    return found
