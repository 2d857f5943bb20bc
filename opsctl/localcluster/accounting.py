"""slurmdbd on a private MariaDB: who may run what, and what ran."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from opsctl.errors import OpsctlError
from opsctl.localcluster import daemons
from opsctl.localcluster.installation import Installation
from opsctl.localcluster.places import Places
from opsctl.localcluster.ports import Ports
from opsctl.localcluster.spec import Spec


def start(
    places: Places,
    ports: Ports,
    installation: Installation,
    environment: dict[str, str],
    missing: set[str],
    user: str,
    progress: Callable[[str], None],
) -> None:
    """Start the database and slurmdbd as far as they are `missing`, and wait for each."""
    raise OpsctlError("accounting is not there yet")


def register_cluster(spec: Spec, installation: Installation, environment: dict[str, str]) -> None: ...


def add_people(spec: Spec, installation: Installation, environment: dict[str, str], user: str) -> None: ...
