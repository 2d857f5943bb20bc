"""Whether the group may write in a folder, and letting it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from opsctl.account import account_name, unix_group
from opsctl.errors import OpsctlError

#: What lets every member of the folder's group make files there that are the group's again.
_GROUP_MODE = 0o2070


def is_open_to_group(folder: Path, group: str | None = None) -> bool:
    """Whether `group` (None: the folder's own, whichever it is) may write in `folder`."""
    try:
        found = folder.stat()
    except OSError:
        return False
    is_open = bool(found.st_mode & stat.S_ISGID) and found.st_mode & 0o070 == 0o070
    return is_open and (group is None or found.st_gid == unix_group(group).gr_gid)


def open_to_group(folder: Path, group: str | None = None) -> None:
    """Let `group` (None: the folder's own) write in `folder`. Raises OpsctlError naming who can, where we may not."""
    found = folder.stat()
    try:
        if group is not None and found.st_gid != unix_group(group).gr_gid:
            os.chown(folder, -1, unix_group(group).gr_gid)
        # chown clears the setgid bit, so the mode comes after it.
        mode = stat.S_IMODE(found.st_mode) | _GROUP_MODE
        if stat.S_IMODE(folder.stat().st_mode) != mode:
            folder.chmod(mode)
    except PermissionError:
        owner = account_name(found.st_uid)
        raise OpsctlError(
            f"cannot open {folder} to the group: it belongs to {owner}; {owner} can run opsctl kill-switch arm"
            + (f" (and must be in group {group})" if group else "")
        ) from None


def owner_of(path: Path) -> str:
    """The account that `path` belongs to; "its owner" where that cannot be seen."""
    try:
        return account_name(path.stat().st_uid)
    except OSError:
        return "its owner"
