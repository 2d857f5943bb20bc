"""A message to those who mend nodes: what was seen of some, drafted, and put on record once it is sent.

What a person or a log has said in the evidence may name files and hosts of a run: paths, addresses and what may be a
key are left out.
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
    """One node of one report that was sent."""

    node: Annotated[str, Meta(description="Its name.")]
    at: Annotated[Moment, Meta(description="When it was sent.")]
    by: Annotated[str, Meta(description="Who sent it.")]
    to: Annotated[str, Meta(description="The address.")]
    seen_until: Annotated[Moment, Meta(description="When the newest thing that it tells was seen.")]


class DraftedReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report, and what became of it."""

    to: Annotated[str | None, Meta(description="The profile's `[nodes] support`; null without one.")]
    nodes: Annotated[tuple[str, ...], Meta(description="Names of the nodes that it is about.")]
    title: Annotated[str, Meta(description="The subject.")]
    body: Annotated[str, Meta(description="The text.")]
    is_sent: Annotated[bool, Meta(description="Whether it was sent now.")]


def draft(seen: Sequence[SeenNode], evidence: dict[str, list[NodeEvidence]], by: str, now: datetime) -> tuple[str, str]:
    """(subject, text) of a report on nodes. evidence: each node's, the newest first. Pure."""
    names = ", ".join(one.node for one in seen)
    lines = []
    if any(evidence.get(one.node) for one in seen):
        which = "these nodes" if len(seen) > 1 else "this node"
        lines = [f"Something speaks against {which}, seen in jobs of {by}.", ""]
    for one in seen:
        reason = f" ({clean(one.reason)})" if one.reason else ""
        lines.append(f"{one.node}: Slurm says {one.state}{reason} at {iso(now, 'minutes')}")
        lines += [f"  {_line(line)}" for line in evidence.get(one.node, [])]
        if one.exclusion is not None and not one.kept_in:
            lines.append(
                f"  our jobs stay off it until {iso(one.exclusion.until, 'minutes')}: {clean(one.exclusion.why)}"
            )
        lines.append("")
    lines.append("Could you look at it? We use it again once you say so.")
    return f"bad node{'s' if len(seen) > 1 else ''}: {names}", "\n".join(lines)


def clean(text: str) -> str:
    """`text` on one line, without paths, addresses and what may be a key."""
    line = " ".join(printable(text).split())
    for pattern, instead in ((_ADDRESS, "[address]"), (_PATH, "[path]"), (_KEY, "[...]")):
        line = pattern.sub(instead, line)
    return line[:_LONGEST]


def job_of(one: NodeEvidence) -> str:
    """The id of the job in which it was seen; empty where that was in none."""
    job = one.attempt.partition("-")[0]
    return job if job.isdecimal() else ""


@contextlib.contextmanager
def reporting(place: Place) -> Iterator[list[SentReport]]:
    """All that was sent, while nobody else sends. Raises OpsctlError where somebody does, OSError."""
    make_folder(place.root, place.folder)
    with locked(place.root, place.reports.with_suffix(".lock"), _LOCK_WAIT_S, "report nodes"):
        yield read_lines(place.root, place.reports, SentReport)


def record_sent(place: Place, sent: Sequence[SentReport]) -> None:
    """Put it on record, so that nobody tells the same again. Raises OSError."""
    for one in sent:
        append_state(place.root, place.reports, one)


def already_reported(node: str, evidence: Sequence[NodeEvidence], sent: Sequence[SentReport]) -> SentReport | None:
    """The last report on the node, where nothing of `evidence` is newer than what that told. Pure."""
    last = next((one for one in reversed(sent) if one.node == node), None)
    if last is None or any(one.at > last.seen_until for one in evidence):
        return None
    return last


def refuse_healthy(seen: Sequence[SeenNode], evidence: dict[str, list[NodeEvidence]]) -> None:
    """Raise OpsctlError for the first node that is in service, not kept off, and of which nothing was seen."""
    for one in seen:
        if not (evidence.get(one.node) or one.is_out_of_service or one.exclusion is not None):
            raise OpsctlError(
                f"nothing speaks against {one.node} ({one.state}): nothing to report; opsctl exclude add {one.node} "
                "--why TEXT puts what you know of it on record, and keeps jobs off it"
            )


def refuse_reported(nodes: Sequence[str], evidence: dict[str, list[NodeEvidence]], sent: Sequence[SentReport]) -> None:
    """Raise OpsctlError for the first node that was reported since anything was seen of it."""
    for node in nodes:
        last = already_reported(node, evidence.get(node, []), sent)
        if last is not None:
            raise OpsctlError(
                f"{node} was reported at {iso(last.at, 'minutes')} by {last.by} to {last.to}, and nothing was seen of "
                "it since: nothing was sent"
            )


def _line(one: NodeEvidence) -> str:
    job = f", job {job_of(one)}" if job_of(one) else ""
    return f"{iso(one.at)}{job}: {one.kind}, confidence {one.confidence:.2f}: {clean(one.words)}"
