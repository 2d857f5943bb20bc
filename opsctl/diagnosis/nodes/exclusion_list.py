"""The exclusion list: `excluded-nodes.json` with one record per node, and a line for each decision next to it.

It is in the run's state, or in the folder that the profile names for several runs. Writers hold a lock and replace the
file. A file of a newer release is read as far as it is known, and never written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import append_state, locked, make_folder, parsed, read_lines, read_text, write_state
from opsctl.core.output import printable
from opsctl.core.timestamps import now, to_the_second
from opsctl.diagnosis.nodes.node_evidence import AHEAD, NodeEvidence
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import NodesTable
from opsctl.run.state.group_folder import Kind, open_to
from trainer.formats.json_text import Moment
from trainer.formats.tolerant import decode

VERSION = 1
#: Stands where an account does, of what nobody in person decided.
BY_EVIDENCE = "evidence"
#: How long who changes something here waits for another who does.
LOCK_WAIT_S = 5.0


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is, or was, kept out."""

    node: Annotated[str, Meta(description="Its name.")]
    since: Annotated[Moment, Meta(description="When that was decided.")]
    until: Annotated[Moment, Meta(description="When it ends by itself.")]
    by: Annotated[str, Meta(description="`evidence`, or the account that said so.")]
    why: Annotated[str, Meta(description="In a sentence.")]
    evidence: Annotated[tuple[str, ...], Meta(description="What it rests on, the strongest first.")] = ()
    score: Annotated[float, Meta(description="What all evidence weighed when it was judged last.")] = 0.0
    times: Annotated[int, Meta(description="How often evidence has excluded it by now, this one included.")] = 0
    strength: Annotated[
        float, Meta(description="By which nodes are ordered where a run has room to stay off some only.")
    ] = 0.0
    seen_until: Annotated[
        Moment | None,
        Meta(description="Date of the newest thing seen of it by then where a clock was ahead; null where none was."),
    ] = None
    removed_at: Annotated[Moment | None, Meta(description="When a person ended it; null where nobody did.")] = None
    removed_by: Annotated[str, Meta(description="Who did.")] = ""

    @property
    def served(self) -> datetime:
        """Up to when all evidence has had its exclusion, or was forgiven by whoever ended it."""
        decided = self.removed_at or self.since
        return max(decided, self.seen_until or decided)

    @property
    def is_a_persons(self) -> bool:
        """Whether somebody said so, which no evidence and no cap takes back."""
        return self.by != BY_EVIDENCE

    def stands(self, now: datetime) -> bool:
        """Whether it has not ended. A run that finds no other nodes may use the node all the same."""
        return self.removed_at is None and self.until > now


class ListedExclusion(Exclusion, frozen=True, kw_only=True):
    """A node of the list, and what the run makes of it."""

    kept_in: Annotated[str, Meta(description="Why the run still uses it; empty if it does not.")] = ""


class ExcludedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    version: int = VERSION
    nodes: tuple[Exclusion, ...] = ()

    def in_force(self, now: datetime) -> list[Exclusion]:
        """Those that have not ended."""
        return [one for one in self.nodes if one.stands(now)]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `node-decisions.jsonl`."""

    at: Moment
    node: str
    what: str  # "excluded", "removed"
    by: str
    why: str
    until: Moment | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a list and its evidence lie: a run's state, or a folder that several runs share."""

    root: Path  # as `state_files` is given it
    folder: Path

    @property
    def excluded(self) -> Path:
        """The list."""
        return self.folder / "excluded-nodes.json"

    @property
    def lock(self) -> Path:
        """Held while the list changes."""
        return self.folder / "excluded-nodes.lock"

    @property
    def decisions(self) -> Path:
        """A line for each decision; only added to."""
        return self.folder / "node-decisions.jsonl"

    @property
    def reports(self) -> Path:
        """A line for each report that was sent to those who mend nodes; only added to."""
        return self.folder / "node-reports.jsonl"

    @property
    def evidence(self) -> Path:
        """A line for each thing that speaks against a node; only added to."""
        return self.folder / "node-evidence.jsonl"


def own_place(paths: RunPaths) -> Place:
    """The run's own."""
    return Place(paths.output, paths.state)


def read_excluded(place: Place) -> ExcludedNodes:
    """The list as far as it fits; empty where there is none. Raises OpsctlError where it cannot be read."""
    text = _text(place)
    if text is None:
        return ExcludedNodes()
    found = decode(text, ExcludedNodes)
    if found is None:
        raise OpsctlError(f"{place.excluded} is no list of nodes: move it away")
    return found


@contextlib.contextmanager
def changing(place: Place, what: str) -> Iterator[ExcludedNodes]:
    """The list for whoever changes it, under its lock. Raises OpsctlError for a newer release's, or a damaged one."""
    make_folder(place.root, place.folder)
    with locked(place.root, place.lock, LOCK_WAIT_S, what):
        text = _text(place)
        known = ExcludedNodes() if text is None else decode(text, ExcludedNodes)
        if known is None:
            raise OpsctlError(f"cannot {what}: {place.excluded} is no list of nodes: move it away")
        if known.version > VERSION:
            raise OpsctlError(
                f"cannot {what}: a newer opsctl wrote {place.excluded} (version {known.version}, this one knows "
                f"{VERSION}): use that one"
            )
        if text is not None:
            try:
                parsed(text, ExcludedNodes)
            except ValueError as error:
                raise OpsctlError(f"cannot {what}: {place.excluded}: {error}; mend it or move it away") from None
        yield known


def write_excluded(place: Place, nodes: Sequence[Exclusion], decisions: Sequence[Decision]) -> None:
    """Replace the list and put down why. The caller is in `changing`. Raises OSError."""
    ordered = tuple(sorted(nodes, key=lambda one: one.node))
    for decision in decisions:
        append_state(place.root, place.decisions, decision)
    write_state(place.root, place.excluded, ExcludedNodes(nodes=ordered))


def read_evidence_of(place: Place) -> list[NodeEvidence]:
    """All lines that can be read. Raises OSError."""
    return read_lines(place.root, place.evidence, NodeEvidence)


def evidence_line(one: NodeEvidence) -> str:
    """It in a line for people."""
    by = f", by {one.by}" if one.by else ""
    words = printable(" ".join(one.words.split()))[:300]
    return f"{to_the_second(one.at):%Y-%m-%d %H:%M} {one.kind} ({one.confidence:.2f}{by}): {words}"


def _text(place: Place) -> str | None:
    try:
        return read_text(place.root, place.excluded)
    except OSError as error:
        raise OpsctlError(f"cannot read {error.filename or place.excluded}: {error.strerror or error}") from None


SHARED = Kind("a shared folder of node evidence", "[nodes] shared", "the profile's [nodes]", "opsctl exclude list")


def place_of(paths: RunPaths, table: NodesTable) -> Place:
    """Return the list that counts for the run; create a shared folder. Raises RunFileError, OpsctlError, OSError."""
    if table.shared is None:
        return own_place(paths)
    folder = Path(table.shared).expanduser()
    if not folder.is_dir():
        open_to(folder, table.group, SHARED)
    return Place(folder, folder)


def evidence_for(paths: RunPaths, place: Place) -> list[NodeEvidence]:
    """All that is known at `place`; what the run itself has seen is put there first where several share it.

    What is dated more than a day ahead is passed over. A folder that cannot be written takes nothing, and the run goes
    by its own lines too. Raises OSError where either cannot be read.
    """
    latest, own = now() + AHEAD, read_evidence_of(own_place(paths))
    if place == own_place(paths):
        return [one for one in own if one.at <= latest]
    known = read_evidence_of(place)
    there = set(known)
    missing = [one for one in dict.fromkeys(own) if one not in there]
    for one in missing:
        try:
            append_state(place.root, place.evidence, one)
        except OSError:
            break
    return [one for one in (*known, *missing) if one.at <= latest]
