"""A Slurm that remembers in a file, for tests in which processes die, or two are at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory


class SlurmInAFile(SlurmInMemory):
    """What was submitted is there for every process that has the file's name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        for script in self._scripts():
            super().submit(script)

    def submit(self, script: str) -> int:
        with self.path.open("a") as file:
            file.write(f"{script}\0")
        return super().submit(script)

    def jobs(self, *which: Any, **by: Any) -> Any:
        return SlurmInMemory.jobs(SlurmInAFile(self.path) if len(self._scripts()) != len(self.scripts) else self)

    def _scripts(self) -> list[str]:
        return self.path.read_text().split("\0")[:-1] if self.path.exists() else []
