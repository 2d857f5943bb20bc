"""A background command of this account in a folder of the test's own, and a Slurm that only remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opsctl.jobs.background.records import BackgroundCommand, CommandRecords
from opsctl.jobs.background.submission import new_command
from opsctl.run.config.schema import JobsTable
from opsctl.slurm.cluster import Cluster


def a_command(folder: Path, *words: str, table: JobsTable | None = None, **changes: Any) -> BackgroundCommand:
    given = {"time": "10:00", **changes.pop("given", {})}
    settings = {"goes_on": True, "internet": False, "run": "", **changes}
    wanted = words or ("checkpoints", "prune")
    return new_command(wanted, str(folder), 0o022, Cluster(), table or JobsTable(), given, **settings)


def a_place(folder: Path) -> CommandRecords:
    return CommandRecords(folder / "errands")
