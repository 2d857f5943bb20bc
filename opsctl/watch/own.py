"""Which jobs of a queue are this run's, whatever their names are and whoever submitted them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from opsctl.runs.paths import RunPaths
from opsctl.slurm.types import Job

_COMMENT = re.compile(r"\bopsctl run=(?P<run_id>\S+)")


@dataclass(frozen=True)
class Recorded:
    """What the run's state says of its submissions."""

    run_id: str | None = None
    chains: frozenset[int] = frozenset()  # array job ids
    submitters: frozenset[str] = frozenset()

    def is_own(self, job: Job) -> bool:
        """By the job's comment; by its array's id where somebody has changed the comment to something else."""
        match = _COMMENT.search(job.comment)
        if match:
            return match["run_id"] == self.run_id
        return job.array_job_id in self.chains


def recorded(paths: RunPaths) -> Recorded:
    """What is recorded; empty before the first submit. Lines that cannot be read are passed over."""
    try:
        run_id: str | None = paths.run_id.read_text().strip() or None
    except FileNotFoundError:
        run_id = None
    chains = _lines(paths)
    return Recorded(
        run_id,
        frozenset(chain["chain"] for chain in chains if isinstance(chain.get("chain"), int)),
        frozenset(chain["user"] for chain in chains if isinstance(chain.get("user"), str)),
    )


def _lines(paths: RunPaths) -> list[dict[str, Any]]:
    try:
        text = paths.chains.read_text(errors="replace")
    except FileNotFoundError:
        return []
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
