"""Who somebody is, as the system knows it: `$USER` survives su and is anybody's claim."""

from __future__ import annotations

import grp
import os
import pwd
import socket

from opsctl.errors import RunFileError


def account_name(uid: int | None = None) -> str:
    """The name of the account `uid` (default: the caller's), or `uid N` for one without a name."""
    number = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def account_and_host() -> str:
    """`user@host`."""
    return f"{account_name()}@{socket.gethostname()}"


def unix_group(name: str) -> grp.struct_group:
    """The Unix group that a run file's `[run] group` names. Raises RunFileError when there is none."""
    try:
        return grp.getgrnam(name)
    except KeyError:
        raise RunFileError(f"no Unix group {name!r} on this machine: correct `group` in the run file's [run]") from None
