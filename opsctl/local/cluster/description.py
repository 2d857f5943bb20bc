"""`cluster.json`: what a local cluster is, beside what `opsctl.slurm.cluster.Cluster` reads from the same file."""

from __future__ import annotations

import msgspec

from opsctl.core.files.state_files import read_whole, write_state
from opsctl.local.cluster.files import Places
from opsctl.local.cluster.ports import Ports
from opsctl.local.cluster.spec import Spec
from opsctl.slurm.cluster import Cluster


class Description(msgspec.Struct, frozen=True):
    """A local cluster as its last `up` made it."""

    cluster: Cluster
    spec: Spec
    ports: Ports
    user: str  # who runs the daemons


class _Rest(msgspec.Struct):
    """What the file has beside the fields of Cluster."""

    user: str
    ports: Ports
    spec: Spec


def write_description(places: Places, description: Description) -> None:
    """Write it so that anyone may read it."""
    rest = _Rest(description.user, description.ports, description.spec)
    value = {**msgspec.to_builtins(description.cluster), **msgspec.to_builtins(rest)}
    write_state(places.folder, places.description, value, mode=0o644)


def read_description(places: Places) -> Description | None:
    """What the last `up` in this folder wrote; None when there was none. Raises OpsctlError for a damaged file."""
    remedy = "remove it, then opsctl local-cluster up"
    cluster = read_whole(places.folder, places.description, Cluster, remedy)
    rest = read_whole(places.folder, places.description, _Rest, remedy)
    return Description(cluster, rest.spec, rest.ports, rest.user) if cluster and rest else None
