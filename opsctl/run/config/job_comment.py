"""The Slurm comment that identifies a run's jobs, whatever their names and owners. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMMENT = re.compile(r"opsctl run=(?P<run>\S+) submit=(?P<token>\S+)")


@dataclass(frozen=True)
class JobComment:
    """The parsed comment of a job of ours."""

    run_id: str
    token: str  # of the one submission it came from

    @staticmethod
    def of_run(run_id: str | None) -> str:
        """Return the words with which the comment of every job of a run begins; empty for None."""
        return f"opsctl run={run_id}" if run_id else ""

    def __str__(self) -> str:
        return f"{self.of_run(self.run_id)} submit={self.token}"


def parse_comment(text: str) -> JobComment | None:
    """Parse a job's comment; None for one that is not ours."""
    match = _COMMENT.match(text)
    return JobComment(match["run"], match["token"]) if match else None
