"""Findings as people look at them: what a look finds, with what is remembered of it, and what earlier looks found.

The desk remembers since when something is so and who looks after it. Checks that cost too much for every look (file
systems, nodes, files one by one) are its regular look's; what that found stands here with when it was seen. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.timestamps import to_the_second
from opsctl.monitoring.finding import Finding, PrintedFinding, Severity, printed_finding
from opsctl.run.state.alerts import Remembered
from opsctl.ui.status.durations import since
from trainer.formats.json_text import Moment


@dataclass(frozen=True)
class OpenFinding:
    """One finding, and what is known of it beyond this look."""

    finding: Finding
    since: datetime | None = None
    seen_at: datetime | None = None  # by an earlier look, which this one did not repeat; None: now
    acknowledged_by: str = ""
    acknowledged_at: datetime | None = None
    acknowledged_why: str = ""

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.finding.severity

    def story(self, now: datetime) -> str:
        """Since when, who looks after it, what to do, in a line; empty where there is nothing to say."""
        parts = []
        if self.since is not None:
            parts.append(f"for {since(self.since, now)}")
        if self.seen_at is not None:
            parts.append(f"seen {since(self.seen_at, now)} ago")
        if self.acknowledged_by:
            why = f": {self.acknowledged_why}" if self.acknowledged_why else ""
            at = f" {since(self.acknowledged_at, now)} ago" if self.acknowledged_at is not None else ""
            parts.append(f"acknowledged by {self.acknowledged_by}{at}{why}")
        if self.finding.todo:
            parts.append(f"do: {self.finding.todo}")
        return "; ".join(parts)


class PrintedOpenFinding(PrintedFinding, frozen=True, kw_only=True):
    """One line of one check, and what is remembered of it."""

    seen_at: Annotated[
        Moment | None, Meta(description="When an earlier look saw it, where this one does not run its check.")
    ]
    acknowledged_by: Annotated[str | None, Meta(description="Who looks after it.")]
    acknowledged_at: Annotated[Moment | None, Meta(description="Since when.")]
    acknowledged_why: Annotated[str | None, Meta(description="What they said.")]


def printed_open(one: OpenFinding) -> PrintedOpenFinding:
    """`one` for programs; `since` as it is remembered where the check itself does not know."""
    found = {**msgspec.structs.asdict(printed_finding(one.finding)), "since": to_the_second(one.since)}
    return PrintedOpenFinding(
        **found,
        seen_at=to_the_second(one.seen_at),
        acknowledged_by=one.acknowledged_by or None,
        acknowledged_at=to_the_second(one.acknowledged_at),
        acknowledged_why=one.acknowledged_why or None,
    )


def with_memory(
    found: Sequence[Finding], remembered: Mapping[str, Remembered], checked: Collection[str]
) -> list[OpenFinding]:
    """What this look found, and what is remembered of checks that it did not run; worst first.

    remembered: by the finding's key, those that are open. checked: the names of the checks that looked.
    """
    shown = [_joined(one, remembered.get(one.key)) for one in found]
    for key, one in remembered.items():
        check, _, subject = key.partition(":")
        severity = _SEVERITIES.get(one.severity)
        if severity is not None and check not in checked:
            finding = Finding(check, severity, one.text, None, subject, one.since, one.evidence, one.todo)
            shown.append(_joined(finding, one, one.last_seen))
    return sorted(shown, key=lambda one: -one.severity.weight)


_SEVERITIES = {"warning": Severity.WARNING, "critical": Severity.CRITICAL}


def _joined(finding: Finding, one: Remembered | None, seen_at: datetime | None = None) -> OpenFinding:
    if one is None:
        return OpenFinding(finding, finding.since, seen_at)
    return OpenFinding(
        finding,
        finding.since or one.since,
        seen_at,
        one.acknowledged_by,
        one.acknowledged_at,
        one.acknowledged_why,
    )
