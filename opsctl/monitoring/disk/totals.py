"""Adding up what is in a folder, by whose it is and by which of its folders it is in: a visitor of a walk."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from opsctl.core.dirwalk.sequential import ITSELF, Folder, Visitor, share_of_bytes

#: What lies in the folder itself and not in one of its folders.
HERE = "."


@dataclass
class Amounts:
    """Bytes on the disk and entries: by uid, and by the first folder of the place."""

    users: dict[int, list[int]] = field(default_factory=dict)
    folders: dict[str, list[int]] = field(default_factory=dict)

    def add(self, other: Amounts) -> None:
        """Add what another part of the walk has found."""
        for uid, amount in other.users.items():
            _add(self.users.setdefault(uid, [0, 0]), *amount)
        for name, amount in other.folders.items():
            _add(self.folders.setdefault(name, [0, 0]), *amount)


@dataclass
class Counting(Visitor[Amounts]):
    """A visitor that adds up."""

    found: Amounts = field(default_factory=Amounts)
    _folder: Folder | None = None
    _of_folder: list[int] = field(default_factory=list)

    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        """Count this one; a folder of the root counts for itself."""
        size = share_of_bytes(seen)
        if not folder.place:
            is_folder = name != ITSELF and seen.st_mode & 0o170000 == 0o040000
            amount = self.found.folders.setdefault(name if is_folder else HERE, [0, 0])
        elif folder is self._folder:
            amount = self._of_folder
        else:
            amount = self.found.folders.setdefault(folder.place.partition("/")[0], [0, 0])
            self._folder, self._of_folder = folder, amount
        _add(amount, size, 1)
        _add(self.found.users.setdefault(seen.st_uid, [0, 0]), size, 1)

    def take(self) -> Amounts:
        """What has been counted since this was asked last."""
        found, self.found, self._folder = self.found, Amounts(), None
        return found


def _add(amount: list[int], size_bytes: int, entries: int) -> None:
    amount[0] += size_bytes
    amount[1] += entries
