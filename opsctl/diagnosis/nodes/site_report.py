"""Draft a report on bad nodes to the site's support.

Evidence can contain a run's file and host names, because people and logs write it. Reports leave out paths, addresses
and strings that may be keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.errors import OpsctlError
from opsctl.core.output import printable
from opsctl.core.timestamps import iso
from opsctl.diagnosis.nodes.listing import SeenNode
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence

_ADDRESS = re.compile(r"\b[A-Za-z][\w+.-]*://\S+")
_PATH = re.compile(r"(?<![\w/])~?/(?:[\w.@+=,:-]+/?)+")
_KEY = re.compile(r"(?=[\w+/=-]*\d)(?=[\w+/=-]*[A-Za-z])[\w+/=-]{24,}")
_LONGEST = 300


class DraftedReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report for the site's support."""

    nodes: Annotated[tuple[str, ...], Meta(description="Names of its nodes.")]
    title: Annotated[str, Meta(description="The subject.")]
    body: Annotated[str, Meta(description="The text.")]


def draft(seen: Sequence[SeenNode], evidence: dict[str, list[NodeEvidence]], by: str, now: datetime) -> tuple[str, str]:
    """Return (subject, text) of a report on nodes. evidence: each node's, the newest first. Pure."""
    names = ", ".join(one.node for one in seen)
    lines = []
    if any(evidence.get(one.node) for one in seen):
        which = "these nodes" if len(seen) > 1 else "this node"
        lines = [f"Jobs of {by} found problems on {which}.", ""]
    for one in seen:
        reason = f" ({clean(one.reason)})" if one.reason else ""
        lines.append(f"{one.node}: state in Slurm {one.state}{reason} at {iso(now, 'minutes')}")
        lines += [f"  {_line(line)}" for line in evidence.get(one.node, [])]
        if one.exclusion is not None and not one.kept_in:
            lines.append(f"  our jobs avoid it until {iso(one.exclusion.until, 'minutes')}: {clean(one.exclusion.why)}")
        lines.append("")
    lines.append("Could you check it? We will use it again after your reply.")
    return f"bad node{'s' if len(seen) > 1 else ''}: {names}", "\n".join(lines)


def clean(text: str) -> str:
    """Return `text` on one line, without paths, addresses and strings that may be keys."""
    line = " ".join(printable(text).split())
    for pattern, instead in ((_ADDRESS, "[address]"), (_PATH, "[path]"), (_KEY, "[...]")):
        line = pattern.sub(instead, line)
    return line[:_LONGEST]


def job_of(one: NodeEvidence) -> str:
    """Return the id of the job of the evidence; empty outside of a job."""
    job = one.attempt.partition("-")[0]
    return job if job.isdecimal() else ""


def refuse_healthy(seen: Sequence[SeenNode], evidence: dict[str, list[NodeEvidence]]) -> None:
    """Raise OpsctlError for the first node that is in service and has neither an exclusion nor evidence."""
    for one in seen:
        if not (evidence.get(one.node) or one.is_out_of_service or one.exclusion is not None):
            raise OpsctlError(
                f"{one.node} ({one.state}) has no evidence to report. To record a problem and exclude the node: "
                f"opsctl exclude add {one.node} --why TEXT"
            )


def _line(one: NodeEvidence) -> str:
    job = f", job {job_of(one)}" if job_of(one) else ""
    return f"{iso(one.at)}{job}: {one.kind}, confidence {one.confidence:.2f}: {clean(one.words)}"
