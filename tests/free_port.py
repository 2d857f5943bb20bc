"""A port for a rendezvous of the test's own."""

from __future__ import annotations

import random
import socket

#: Below what the kernel hands out to connections, which come and go between the look and the use.
_CANDIDATES = range(20_000, 27_000)


def free_port() -> int:
    """A TCP port that no one listens on now."""
    for port in random.SystemRandom().sample(_CANDIDATES, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port among 200 of {_CANDIDATES}")
