"""Unix accounts and groups, from the system's databases. `$USER` is not used: it survives su, and users can set it."""

from __future__ import annotations

import grp
import os
import pwd
import socket

from opsctl.core.errors import RunFileError


def account_name(uid: int | None = None) -> str:
    """Return the name of the account `uid` (default: the caller's), or `uid N` for one without a name."""
    number = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def account_home() -> str:
    """Return the caller's home folder, in which its jobs begin; empty without one. `$HOME` may be another folder."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def account_and_host() -> str:
    """`user@host`."""
    return f"{account_name()}@{socket.gethostname()}"


def is_member(uid: int, gid: int) -> bool:
    """Return whether the account `uid` is in the group `gid`, as its primary group or another."""
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return False
    return gid in os.getgrouplist(account.pw_name, account.pw_gid)


def is_nobody_elses(gid: int) -> bool:
    """Return whether only root and the caller are in the group `gid`: root's, or the caller's private group."""
    try:
        group, account = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    is_own = gid == 0 or (gid == account.pw_gid and group.gr_name == account.pw_name)
    return is_own and set(group.gr_mem) <= {account.pw_name, "root"}


def group_name(gid: int) -> str:
    """Return the name of the group `gid`, or its number for one without a name."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def unix_group(name: str, where: str = "the run file's [run]") -> grp.struct_group:
    """Return the Unix group that `group` in `where` names. Raises RunFileError if there is none."""
    try:
        return grp.getgrnam(name)
    except KeyError:
        raise RunFileError(f"no Unix group {name!r} on this machine: correct `group` in {where}") from None


def membership_problem(name: str, where: str = "the run file's [run]") -> str | None:
    """Why this process cannot share anything with the Unix group `name` of `where`, None when it can."""
    try:
        group = unix_group(name, where)
    except RunFileError as error:
        return str(error)
    if os.geteuid() == 0 or group.gr_gid in (os.getegid(), *os.getgroups()):
        return None
    if is_member(os.geteuid(), group.gr_gid):
        return f"{account_name()} is in group {name}, but not yet in this session: log in again"
    return f"{account_name()} is not in group {name}, with which {where} shares it: join it, or correct `group`"
