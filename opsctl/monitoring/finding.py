"""What a check found, and how bad that is in Nagios's terms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from opsctl.core.timestamps import to_the_second
from trainer.formats.json_text import Moment

SeverityWord = Literal["ok", "warning", "critical", "unknown"]


class Severity(IntEnum):
    """Nagios's exit codes. UNKNOWN: the check could not see; it says nothing about what it looks at."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def weight(self) -> int:
        """How much it matters: what is known to be bad more than what could not be seen, and that more than a warning.

        The numbers themselves are no order: a check that cannot see must not hide another's alarm.
        """
        return (Severity.OK, Severity.WARNING, Severity.UNKNOWN, Severity.CRITICAL).index(self)


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
    text: str  # without time stamp, nor what to do
    alert: str | None = None  # whom to alert, for those that call for somebody
    subject: str = ""  # which of several that the check looks at: a node, a file system, a group of iterations
    since: datetime | None = None  # with zone; None: only whoever remembers the last look can say
    evidence: tuple[str, ...] = ()  # what it goes by, a short line each: numbers with units, where they were read
    todo: str = ""  # what to type next, or to do

    @property
    def key(self) -> str:
        """The same of the same trouble at every look, however its numbers change."""
        return f"{self.check}:{self.subject}" if self.subject else self.check


class PrintedFinding(Struct, frozen=True, kw_only=True):
    """One line of one check."""

    check: Annotated[str, Meta(description="The check's name.")]
    severity: Annotated[SeverityWord, Meta(description="How bad it is.")]
    text: Annotated[str, Meta(description="What it found, in words.")]
    alert: Annotated[str | None, Meta(description="Whom to alert, where it calls for somebody.")]
    key: Annotated[str, Meta(description="The same of the same trouble at every look: check, or check:subject.")]
    since: Annotated[Moment | None, Meta(description="Since when, as far as it is known.")]
    evidence: Annotated[tuple[str, ...], Meta(description="What it goes by.")]
    todo: Annotated[str | None, Meta(description="What to type or to do next.")]


def severity_word(severity: Severity) -> SeverityWord:
    """It in a word, for programs and people."""
    return _WORDS[severity]


def printed_finding(finding: Finding) -> PrintedFinding:
    """`finding` for programs."""
    return PrintedFinding(
        check=finding.check,
        severity=severity_word(finding.severity),
        text=finding.text,
        alert=finding.alert,
        key=finding.key,
        since=to_the_second(finding.since),
        evidence=finding.evidence,
        todo=finding.todo or None,
    )


def worst_of(findings: Iterable[Finding]) -> Severity:
    """The severity that matters most, OK without any."""
    return max((finding.severity for finding in findings), key=lambda one: one.weight, default=Severity.OK)


def exit_code(findings: Iterable[Finding]) -> int:
    """That of the worst finding, 0 without any."""
    return int(worst_of(findings))
