"""Find free TCP ports for a cluster, and reserve them against clusters that start at the same time."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.core.errors import OpsctlError
from opsctl.core.tcp_ports import is_free

#: Below Linux's ephemeral ports, so that no outgoing connection uses one.
_FIRST, _LAST, _BLOCK = 20_032, 32_704, 64


@dataclass(frozen=True)
class Ports:
    """The ports of the cluster's daemons on this machine."""

    slurmctld: int
    slurmdbd: int
    slurmds: tuple[int, ...]  # in the order of the spec's nodes; consecutive

    @property
    def first_job_id(self) -> int:
        """Return a first job id that differs between clusters, because jobs derive their rendezvous port from ids.

        Jobs whose ids differ by 18,000 get the same port (`opsctl.jobs.runner.rendezvous`). So the first 90 jobs
        of each of the 198 blocks get ports that no other cluster's first 90 jobs get.
        """
        return 1001 + 18_090 * ((self.slurmctld - _FIRST) // _BLOCK)


@contextlib.contextmanager
def reserve(nodes: int, preferred: Ports | None = None) -> Iterator[Ports]:
    """Reserve free ports for `nodes` slurmds and two more daemons until the block ends; then the daemons must listen.

    The reservation is an abstract Unix socket per block of ports: it is in the ports' network namespace, works between
    users and ends with the process. `preferred`, the cluster's earlier ports, is used if it is free.
    """
    blocks_needed = (nodes + 2 + _BLOCK - 1) // _BLOCK
    starts = list(range(_FIRST, _LAST - blocks_needed * _BLOCK + 1, _BLOCK))
    turn = os.getpid() % len(starts)
    starts = starts[turn:] + starts[:turn]
    if preferred is not None and len(preferred.slurmds) == nodes:
        starts.insert(0, preferred.slurmctld)
    for start in starts:
        with contextlib.ExitStack() as held:
            if all(_hold(held, start + _BLOCK * n) for n in range(blocks_needed)) and all(
                is_free(port) for port in range(start, start + nodes + 2)
            ):
                yield Ports(start, start + 1, tuple(range(start + 2, start + 2 + nodes)))
                return
    raise OpsctlError(
        f"no {nodes + 2} free TCP ports in a row between {_FIRST} and {_LAST}. End other local clusters first"
    )


def _hold(held: contextlib.ExitStack, block: int) -> bool:
    guard = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        guard.bind(f"\0opsctl-local-cluster-ports-{block}")
    except OSError:
        return False
    return True
