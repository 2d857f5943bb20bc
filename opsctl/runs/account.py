"""Who the caller is, as the system knows it: `$USER` survives su and is anybody's claim."""

from __future__ import annotations

import os
import pwd
import socket


def account_name() -> str:
    """The caller's account name, or `uid N` for one without a name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def account_and_host() -> str:
    """`user@host`."""
    return f"{account_name()}@{socket.gethostname()}"
