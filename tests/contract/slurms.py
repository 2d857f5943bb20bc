"""The Slurms on which the contract is tested: this machine's, and those of OPSCTL_SLURM_PREFIXES."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.installation import find_installation
from opsctl.local.cluster.spec import plain
from tests.cluster.conftest import RunningCluster, guarded_folder

#: Folders that `local-cluster up --slurm-prefix` takes, with `:` between them; a folder's name names its Slurm.
PREFIXES = "OPSCTL_SLURM_PREFIXES"


@dataclass(frozen=True)
class Slurm:
    """One installation."""

    prefix: str | None  # None: this machine's

    @property
    def name(self) -> str:
        return Path(self.prefix).name if self.prefix else "machine"

    def why_not(self, backend: str = "commands") -> str:
        """Why nothing can be tried on it with this backend; empty when it can."""
        if os.geteuid():
            return "the contract is about other people's jobs too: only root makes them"
        try:
            installation = find_installation(self.prefix)
        except OpsctlError as error:
            return str(error)
        if backend != "pyslurm":
            return ""
        release = "{}.{:02d}".format(*installation.version)
        try:
            found = metadata.version("pyslurm")
        except metadata.PackageNotFoundError:
            return "pyslurm is not installed in this Python (docs/slurm.md says how)"
        return "" if found.startswith(f"{release}.") else f"pyslurm {found} is not made for Slurm {release}"


SLURMS = tuple(Slurm(prefix) for prefix in (None, *filter(None, os.environ.get(PREFIXES, "").split(os.pathsep))))


@contextmanager
def running(slurm: Slurm) -> Iterator[RunningCluster]:
    """A cluster of four nodes on it."""
    with guarded_folder() as folder:
        spec = replace(plain("contract", slurm_prefix=slurm.prefix), slurmd_timeout_s=12)
        up = lifecycle.up(spec, folder)
        yield RunningCluster(up.folder, up.cluster, find_installation(slurm.prefix))


def parameters() -> list[object]:
    """(Slurm, backend), skipped where it cannot be."""
    found: list[object] = []
    for slurm in SLURMS:
        for backend in ("commands", "pyslurm"):
            why = slurm.why_not(backend)
            marks = [pytest.mark.skip(why)] if why else []
            found.append(pytest.param((slurm, backend), id=f"{slurm.name}-{backend}", marks=marks))
    return found
