"""Whose jobs a run's group is interested in."""

from __future__ import annotations

import grp
import os
import pwd

from opsctl.errors import RunFileError


def interested(group: str | None) -> set[str]:
    """The accounts whose jobs `queue` shows: the group's and the caller's. Raises RunFileError for an unknown group."""
    return {_me()} | (group_members(group) if group else set())


def group_members(group: str) -> set[str]:
    """The accounts in a Unix group: those it lists and those whose own group it is. Raises RunFileError."""
    try:
        found = grp.getgrnam(group)
    except KeyError:
        raise RunFileError(
            f"no Unix group {group!r} on this machine: correct `group` in the run file's [run]"
        ) from None
    return {*found.gr_mem, *(entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == found.gr_gid)}


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())  # squeue shows a user without a name by his number too
