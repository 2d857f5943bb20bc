"""The choice of the backend of a cluster."""

from __future__ import annotations

import os

from opsctl.core.errors import UsageError
from opsctl.slurm.client import INTERACTIVE_DEADLINE_S, Deadline, SlurmClient
from opsctl.slurm.cluster import BACKENDS, Cluster
from opsctl.slurm.commands import CommandClient

#: One of BACKENDS, before what the cluster says.
BACKEND_VARIABLE = "OPSCTL_SLURM_BACKEND"


def client_for(cluster: Cluster, deadline_s: float = INTERACTIVE_DEADLINE_S, patient: bool = False) -> SlurmClient:
    """Return a client of `cluster`. Interactive: all its calls together have `deadline_s`, and none is repeated.

    Patient (jobs, pollers): each call has its own time and is repeated, with growing pauses. The cluster or
    OPSCTL_SLURM_BACKEND chooses the backend. Raises UsageError for an unknown one.
    """
    deadline = None if patient else Deadline(deadline_s)
    backend = os.environ.get(BACKEND_VARIABLE) or cluster.backend
    if backend == "pyslurm":
        from opsctl.slurm.pyslurm_client import PyslurmClient  # few want it

        return PyslurmClient(cluster, deadline)
    if backend != "commands":
        raise UsageError(f"no backend {backend!r} for Slurm: there are {' and '.join(BACKENDS)}")
    return CommandClient(cluster, deadline)
