"""Folders in this account's cache that nobody else can write: what lies there is believed, and may be gone any time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from opsctl.core.files.state_files import make_folder
from opsctl.core.files.trusted import who_else_can_write


def cache_place(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Where opsctl keeps what is called `name`: `$XDG_CACHE_HOME/opsctl/NAME`, there or not."""
    cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(cache) / "opsctl" / name


def cache_folder(name: str, below: str = "", environment: Mapping[str, str] = os.environ) -> Path | None:
    """`cache_place`, or the folder `below` it, made if need be; None where that cannot be, or others could write it."""
    place = cache_place(name, environment)
    folder = place / below if below else place
    try:
        if not folder.is_dir():
            place.parent.parent.mkdir(parents=True, exist_ok=True)
            for one in (place.parent, place):
                one.mkdir(mode=0o700, exist_ok=True)
            if below:
                make_folder(place, folder)
        return folder if is_the_accounts(folder) else None
    except OSError:
        return None


def is_the_accounts(folder: Path) -> bool:
    """Whether this folder is the account's own, closed to all others, and reached through no link. Raises OSError."""
    if any(one.is_symlink() for one in (folder, *folder.parents[:2])):
        return False  # ours are made as folders
    found = folder.stat()
    is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return is_own and who_else_can_write(folder) is None
