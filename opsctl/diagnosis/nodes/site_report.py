"""Draft a report on bad nodes to the site's support, and record reports that were sent.

Evidence can contain a run's file and host names, because people and logs write it. Reports leave out paths, addresses
and strings that may be keys.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import append_state, locked, make_folder, read_lines
from opsctl.core.output import printable
from opsctl.core.timestamps import iso
from opsctl.diagnosis.nodes.exclusion_list import Place
from opsctl.diagnosis.nodes.listing import SeenNode
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence
from trainer.formats.json_text import Moment

_ADDRESS = re.compile(r"\b[A-Za-z][\w+.-]*://\S+")
_PATH = re.compile(r"(?<![\w/])~?/(?:[\w.@+=,:-]+/?)+")
_KEY = re.compile(r"(?=[\w+/=-]*\d)(?=[\w+/=-]*[A-Za-z])[\w+/=-]{24,}")
_LONGEST = 300
_LOCK_WAIT_S = 5.0


class SentReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a report that was sent."""

    node: Annotated[str, Meta(description="Its name.")]
    at: Annotated[Moment, Meta(description="Time of sending.")]
    by: Annotated[str, Meta(description="Its sender.")]
    to: Annotated[str, Meta(description="Its recipient.")]
    seen_until: Annotated[Moment, Meta(description="Time of the newest evidence in it.")]


class DraftedReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report, sent or not."""

    to: Annotated[str | None, Meta(description="The profile's `[nodes] support`; null without one.")]
    nodes: Annotated[tuple[str, ...], Meta(description="Names of its nodes.")]
    title: Annotated[str, Meta(description="The subject.")]
    body: Annotated[str, Meta(description="The text.")]
    is_sent: Annotated[bool, Meta(description="True if it was sent now.")]


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


@contextlib.contextmanager
def reporting(place: Place) -> Iterator[list[SentReport]]:
    """Return all sent reports, under the lock for sending. Raises OpsctlError if another process sends; OSError."""
    make_folder(place.root, place.folder)
    with locked(place.root, place.reports.with_suffix(".lock"), _LOCK_WAIT_S, "report nodes"):
        yield read_lines(place.root, place.reports, SentReport)


def record_sent(place: Place, sent: Sequence[SentReport]) -> None:
    """Record the reports, so that the same is not sent twice. Raises OSError."""
    for one in sent:
        append_state(place.root, place.reports, one)


def already_reported(node: str, evidence: Sequence[NodeEvidence], sent: Sequence[SentReport]) -> SentReport | None:
    """Return the last report on the node if `evidence` has nothing newer, else None. Pure."""
    last = next((one for one in reversed(sent) if one.node == node), None)
    if last is None or any(one.at > last.seen_until for one in evidence):
        return None
    return last


def refuse_healthy(seen: Sequence[SeenNode], evidence: dict[str, list[NodeEvidence]]) -> None:
    """Raise OpsctlError for the first node that is in service and has neither an exclusion nor evidence."""
    for one in seen:
        if not (evidence.get(one.node) or one.is_out_of_service or one.exclusion is not None):
            raise OpsctlError(
                f"{one.node} ({one.state}) has no evidence to report. To record a problem and exclude the node: "
                f"opsctl exclude add {one.node} --why TEXT"
            )


def refuse_reported(nodes: Sequence[str], evidence: dict[str, list[NodeEvidence]], sent: Sequence[SentReport]) -> None:
    """Raise OpsctlError for the first node without new evidence since its last report."""
    for node in nodes:
        last = already_reported(node, evidence.get(node, []), sent)
        if last is not None:
            raise OpsctlError(
                f"{node} was reported at {iso(last.at, 'minutes')} by {last.by} to {last.to}, and has no new evidence. "
                "No report was sent"
            )


def _line(one: NodeEvidence) -> str:
    job = f", job {job_of(one)}" if job_of(one) else ""
    return f"{iso(one.at)}{job}: {one.kind}, confidence {one.confidence:.2f}: {clean(one.words)}"
