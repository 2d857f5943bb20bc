"""Whose jobs a run's group is interested in."""

from __future__ import annotations

import getpass
import grp
import os
import pwd
from collections.abc import Iterable

from opsctl.errors import RunFileError


def me() -> str:
    """The caller's account name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return getpass.getuser()


def group_members(group: str) -> set[str]:
    """The accounts in a Unix group: those it lists and those whose own group it is. Raises RunFileError."""
    try:
        found = grp.getgrnam(group)
    except KeyError:
        raise RunFileError(
            f"no Unix group {group!r} on this machine: correct `group` in the run file's [run]"
        ) from None
    return {name for name in found.gr_mem if _exists(name)} | {
        entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == found.gr_gid
    }


def interested(group: str | None, submitters: Iterable[str]) -> list[str]:
    """Whose jobs to ask for: the group's, the caller's, and the run's submitters', who may have left the group."""
    members = group_members(group) if group else set()
    return sorted(members | {me()} | {name for name in submitters if _exists(name)})


def _exists(name: str) -> bool:
    # squeue refuses the whole question when one name in it is unknown.
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
