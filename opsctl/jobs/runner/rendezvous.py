"""Where the launchers of one job meet: an address and a port on the first node.

On a cluster a node's name resolves; on a local one it does not and all nodes share one address, so the port comes from
the job's id.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from opsctl.core.errors import OpsctlError
from opsctl.core.tcp_ports import is_free

#: Below the range that kernels hand out to outgoing connections (32768 on), above well-known services.
FIRST_PORT = 12_000
PORTS = 18_000
#: Distance between the first choices of neighbouring job ids: two jobs on one host do not probe the same ports.
_STRIDE = 13


def resolves(name: str) -> bool:
    """Whether `name` has an address here."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True


def master_address(
    first_node: str, node_address: Callable[[str], str], resolves: Callable[[str], bool] = resolves
) -> str:
    """The first node's name where names resolve, else the address at which Slurm reaches it."""
    return first_node if resolves(first_node) else node_address(first_node)


def free_port(job_id: int, is_free: Callable[[int], bool] = is_free, tries: int = 200) -> int:
    """The first free port on this host, probing from one that the job's id gives. Raises OpsctlError after `tries`."""
    for step in range(tries):
        port = FIRST_PORT + (job_id * _STRIDE + step) % PORTS
        if is_free(port):
            return port
    raise OpsctlError(f"no free port among {tries} from {FIRST_PORT + job_id * _STRIDE % PORTS} on for the rendezvous")
