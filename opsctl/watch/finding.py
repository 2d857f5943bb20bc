"""What a check found, and how bad that is in Nagios's terms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

SeverityWord = Literal["ok", "warning", "critical", "unknown"]


class Severity(IntEnum):
    """Nagios's exit codes. UNKNOWN: the check could not see; it says nothing about what it looks at."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_WORDS: dict[Severity, SeverityWord] = {
    Severity.OK: "ok",
    Severity.WARNING: "warning",
    Severity.CRITICAL: "critical",
    Severity.UNKNOWN: "unknown",
}


@dataclass(frozen=True)
class Finding:
    """One line of one check."""

    check: str  # the check's name, e.g. "training"
    severity: Severity
    text: str  # without time stamp
    alert: str | None = None  # whom to alert, for those that call for somebody


class PrintedFinding(Struct, frozen=True, kw_only=True):
    """One line of one check."""

    check: Annotated[str, Meta(description="The check's name.")]
    severity: Annotated[SeverityWord, Meta(description="How bad it is.")]
    text: Annotated[str, Meta(description="What it found, in words.")]
    alert: Annotated[str | None, Meta(description="Whom to alert, where it calls for somebody.")]


def printed_finding(finding: Finding) -> PrintedFinding:
    """`finding` for programs."""
    return PrintedFinding(
        check=finding.check, severity=_WORDS[finding.severity], text=finding.text, alert=finding.alert
    )


def exit_code(findings: Iterable[Finding]) -> int:
    """The worst of the findings, 0 without any."""
    return int(max((finding.severity for finding in findings), default=Severity.OK))
