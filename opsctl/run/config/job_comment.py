"""The Slurm comment by which a run's jobs are known, whatever their names are and whoever submitted them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMMENT = re.compile(r"opsctl run=(?P<run>\S+) submit=(?P<token>\S+)")


@dataclass(frozen=True)
class JobComment:
    """What the comment of a job of ours says."""

    run_id: str
    token: str  # of the one submission it came from

    @staticmethod
    def of_run(run_id: str | None) -> str:
        """Return the words with which the comment of every job of a run begins; empty for None."""
        return f"opsctl run={run_id}" if run_id else ""

    def __str__(self) -> str:
        return f"{self.of_run(self.run_id)} submit={self.token}"


def parse_comment(text: str) -> JobComment | None:
    """What a job's comment says; None for one that is not ours."""
    match = _COMMENT.match(text)
    return JobComment(match["run"], match["token"]) if match else None
