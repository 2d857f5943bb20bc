"""The sources of a snapshot's parts; `monitoring.runner` calls them in order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from opsctl.monitoring.snapshot import Part
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import Recorded
from opsctl.run.state.run_view import RunView
from opsctl.slurm.client import SlurmReader


@dataclass(frozen=True)
class Asked:
    """A run, the Slurm to ask about it, and the parts that are wanted."""

    run: RunView
    slurm: SlurmReader
    parts: Part
    known: Recorded  # its submissions

    @property
    def paths(self) -> RunPaths:
        """The run's paths."""
        return self.run.paths


def changed_at(path: Path) -> datetime | None:
    """Return when a file changed last, by the file server; None where it cannot be seen."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).astimezone()
    except OSError:
        return None
