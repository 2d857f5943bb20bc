"""Findings of checks, with Nagios's severities, and numbers in words."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct

from opsctl.core.timestamps import to_the_second
from trainer.formats.json_text import Moment

SeverityWord = Literal["ok", "warning", "critical", "unknown"]
Shape = TypeVar("Shape", bound=Struct)


class Severity(IntEnum):
    """Nagios's exit codes. UNKNOWN: the check could not see; it says nothing about what it looks at."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def weight(self) -> int:
        """The rank of a severity: critical before unknown before warning.

        The numbers themselves are no order: a check that cannot see must not hide another check's alarm.
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
    alert: str | None = None  # the team to alert, if the finding needs a person
    subject: str = ""  # which of several that the check looks at: a node, a file system, a group of iterations
    since: datetime | None = None  # with zone; None: known only from the record of earlier checks
    evidence: tuple[str, ...] = ()  # what it goes by, a short line each: numbers with units, where they were read
    todo: str = ""  # what to type next, or to do

    @property
    def key(self) -> str:
        """The identity of a problem: it stays the same while its numbers change."""
        return f"{self.check}:{self.subject}" if self.subject else self.check


def finding(
    severity: Severity,
    text: str,
    subject: str = "",
    *,
    since: datetime | None = None,
    evidence: Iterable[str] = (),
    todo: str = "",
    alert: str | None = None,
) -> Finding:
    """Return a finding of the check that runs, which `check.check` names. Empty lines of `evidence` are left out."""
    return Finding("", severity, text, alert, subject, since, tuple(filter(None, evidence)), todo)


warning = partial(finding, Severity.WARNING)
critical = partial(finding, Severity.CRITICAL)


class PrintedFinding(Struct, frozen=True, kw_only=True):
    """One line of one check."""

    check: Annotated[str, Meta(description="The check's name.")]
    severity: Annotated[SeverityWord, Meta(description="How bad it is.")]
    text: Annotated[str, Meta(description="The finding in words.")]
    alert: Annotated[str | None, Meta(description="The team to alert, if the finding needs a person.")]
    key: Annotated[str, Meta(description="The same of the same trouble at every look: check, or check:subject.")]
    since: Annotated[Moment | None, Meta(description="Time since when it exists, if known.")]
    evidence: Annotated[tuple[str, ...], Meta(description="Evidence of the finding.")]
    todo: Annotated[str | None, Meta(description="The next command or step.")]


def severity_word(severity: Severity) -> SeverityWord:
    """Return the severity as a word."""
    return _WORDS[severity]


def printed(shape: type[Shape], of: object, **more: Any) -> Shape:
    """Return `of` in a shape for programs, by the attributes of the same names; `more` gives the other fields.

    Times are to the second, and a text that is empty is null where the shape allows that.
    """
    values = {name: getattr(of, name) for name in shape.__struct_fields__ if name not in more}
    for name, value in values.items():
        if isinstance(value, datetime):
            values[name] = to_the_second(value)
        elif value == "" and name in _nullable(shape):
            values[name] = None
    return shape(**values, **more)


@functools.cache
def _nullable(shape: type[Struct]) -> frozenset[str]:
    """Return the names of the fields that may be null."""
    fields = (item for one in shape.__mro__ for item in getattr(one, "__annotations__", {}).items())
    return frozenset(name for name, kind in fields if "None" in str(kind))


def printed_finding(finding: Finding) -> PrintedFinding:
    """Return `finding` for programs."""
    return printed(PrintedFinding, finding, severity=severity_word(finding.severity))


def worst_of(findings: Iterable[Finding]) -> Severity:
    """Return the worst severity, OK without any finding."""
    return max((finding.severity for finding in findings), key=lambda one: one.weight, default=Severity.OK)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code of the worst finding, 0 without any."""
    return int(worst_of(findings))


def length_words(length: timedelta | float) -> str:
    """Return `45 s`, `30 min`, `2.2 h` or `3.1 days`; a number is in seconds."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 120 * 60:
        return f"{int(seconds // 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def percent_words(share: float) -> str:
    """Return `84.2 %` for 0.842."""
    return f"{100 * share:.3g} %"


def since_words(moment: datetime) -> str:
    """Return `since 2022-04-28 09:15`, in local time."""
    return f"since {moment.astimezone().strftime('%Y-%m-%d %H:%M')}"


_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def rough(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h`, `2 d 4 h`, `17 d`: as exact as matters, rounded down. Negative counts as zero."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        return f"{whole // _HOUR} h"
    days, hours = whole // _DAY, whole % _DAY // _HOUR
    return f"{days} d {hours} h" if days < 10 and hours else f"{days} d"


def since(moment: datetime, now: datetime) -> str:
    """Return roughly how long ago `moment` is."""
    return rough((now - moment).total_seconds())
