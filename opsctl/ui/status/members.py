"""Whose jobs a run's group is interested in."""

from __future__ import annotations

import os
import pwd

from opsctl.core.account import unix_group


def interested(group: str | None) -> set[str]:
    """The accounts whose jobs `queue` shows: the group's and the caller's. Raises RunFileError for an unknown group."""
    return {_me()} | (group_members(group) if group else set())


def group_members(group: str) -> set[str]:
    """The accounts in a Unix group: those it lists and those whose own group it is. Raises RunFileError."""
    found = unix_group(group)
    return {*found.gr_mem, *(entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == found.gr_gid)}


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())  # squeue shows a user without a name by his number too
