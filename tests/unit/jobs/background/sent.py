"""An errand of this account in a folder of the test's own, and a Slurm that only remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opsctl.jobs.background.errand_jobs import new_errand
from opsctl.jobs.background.records import Errand, Errands
from opsctl.run.config.schema import JobsTable
from opsctl.slurm.cluster import Cluster


def an_errand(folder: Path, *words: str, table: JobsTable | None = None, **changes: Any) -> Errand:
    given = {"time": "10:00", **changes.pop("given", {})}
    settings = {"goes_on": True, "internet": False, "run": "", **changes}
    wanted = words or ("checkpoints", "prune")
    return new_errand(wanted, str(folder), 0o022, Cluster(), table or JobsTable(), given, **settings)


def a_place(folder: Path) -> Errands:
    return Errands(folder / "errands")
