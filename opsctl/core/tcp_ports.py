"""Check TCP ports of this machine."""

from __future__ import annotations

import errno
import socket


def is_free(port: int) -> bool:
    """Return whether a server could listen on `port` on any address. Raises OSError if it cannot be tested."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers themselves do: what lingers of closed connections (TIME_WAIT) is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
