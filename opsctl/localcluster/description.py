"""`cluster.json`: what a local cluster is, beside what `opsctl.slurm.cluster.Cluster` reads from the same file."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from opsctl.errors import OpsctlError
from opsctl.localcluster.places import Places
from opsctl.localcluster.ports import Ports
from opsctl.localcluster.spec import Spec
from opsctl.records.state_files import write_json
from opsctl.slurm.cluster import Cluster


@dataclass(frozen=True)
class Description:
    cluster: Cluster
    spec: Spec
    ports: Ports
    user: str  # who runs the daemons


def write_description(places: Places, description: Description) -> None:
    """Write it so that anyone may read it."""
    value = {
        **description.cluster.to_json(),
        "user": description.user,
        "ports": asdict(description.ports),
        "spec": asdict(description.spec),
    }
    write_json(places.description, value, mode=0o644)


def read_description(places: Places) -> Description | None:
    """What the last `up` in this folder wrote; None when there was none. Raises OpsctlError for a damaged file."""
    import json

    import msgspec

    try:
        value = json.loads(places.description.read_text())
        return Description(
            cluster=Cluster.from_json(value),
            spec=msgspec.convert(value["spec"], Spec),
            ports=msgspec.convert(value["ports"], Ports),
            user=str(value["user"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OpsctlError(
            f"cannot read {places.description} ({error}): remove it, then opsctl local-cluster up"
        ) from None
