"""What a check found, and how bad that is in Nagios's terms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """Nagios's exit codes. UNKNOWN: the check could not see; it says nothing about what it looks at."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True)
class Finding:
    """One line of one check."""

    check: str  # the check's name, e.g. "training"
    severity: Severity
    text: str  # without time stamp
    alert: str | None = None  # whom to alert, for those that call for somebody


def exit_code(findings: Iterable[Finding]) -> int:
    """The worst of the findings, 0 without any."""
    return int(max((finding.severity for finding in findings), default=Severity.OK))
