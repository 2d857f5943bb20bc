"""The exclusion list: `excluded-nodes.json` with one record per node, and a log of decisions next to it.

It is stored in the run's state, or in the folder that the profile names for several runs. Writers hold a lock and
replace the file. A file of a newer release is read as far as it is known, and never written.
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
#: The value of `by` for exclusions by evidence instead of a person.
BY_EVIDENCE = "evidence"
#: Seconds to wait for the lock of another writer.
LOCK_WAIT_S = 5.0


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is, or was, excluded."""

    node: Annotated[str, Meta(description="Its name.")]
    since: Annotated[Moment, Meta(description="Time of the decision.")]
    until: Annotated[Moment, Meta(description="Time of its expiry.")]
    by: Annotated[str, Meta(description="`evidence`, or the account that added it.")]
    why: Annotated[str, Meta(description="The reason in a sentence.")]
    evidence: Annotated[tuple[str, ...], Meta(description="Evidence, the strongest first.")] = ()
    score: Annotated[float, Meta(description="Weight of all evidence at the last judgement.")] = 0.0
    times: Annotated[int, Meta(description="Number of exclusions by evidence, including this one.")] = 0
    strength: Annotated[float, Meta(description="Order of nodes if a run can avoid only some.")] = 0.0
    seen_until: Annotated[
        Moment | None,
        Meta(description="Time of the newest evidence, if a clock was ahead; else null."),
    ] = None
    removed_at: Annotated[Moment | None, Meta(description="Time at which a person ended it; else null.")] = None
    removed_by: Annotated[str, Meta(description="That person.")] = ""

    @property
    def served(self) -> datetime:
        """Return the time up to which evidence no longer counts, because of this exclusion or its removal."""
        decided = self.removed_at or self.since
        return max(decided, self.seen_until or decided)

    @property
    def is_a_persons(self) -> bool:
        """Return True if a person added it: neither evidence nor a limit removes it."""
        return self.by != BY_EVIDENCE

    def stands(self, now: datetime) -> bool:
        """Return True until it ends. A run without enough other nodes may use the node anyway."""
        return self.removed_at is None and self.until > now


class ListedExclusion(Exclusion, frozen=True, kw_only=True):
    """A node of the list, and its effect on the run."""

    kept_in: Annotated[str, Meta(description="Why the run still uses it; empty if it does not.")] = ""


class ExcludedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file."""

    version: int = VERSION
    nodes: tuple[Exclusion, ...] = ()

    def in_force(self, now: datetime) -> list[Exclusion]:
        """Return the exclusions that have not ended."""
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
    """The folder of a list and its evidence: a run's state, or a folder that several runs share."""

    root: Path  # root argument for `state_files`
    folder: Path

    @property
    def excluded(self) -> Path:
        """Path of the list."""
        return self.folder / "excluded-nodes.json"

    @property
    def lock(self) -> Path:
        """Path of the lock for changes of the list."""
        return self.folder / "excluded-nodes.lock"

    @property
    def decisions(self) -> Path:
        """Path of the log of decisions, append-only."""
        return self.folder / "node-decisions.jsonl"

    @property
    def evidence(self) -> Path:
        """Path of the evidence against nodes, append-only."""
        return self.folder / "node-evidence.jsonl"


def own_place(paths: RunPaths) -> Place:
    """Return the place in the run's own state."""
    return Place(paths.output, paths.state)


def read_excluded(place: Place) -> ExcludedNodes:
    """Return the list; empty if there is none. Raises OpsctlError if it cannot be read."""
    text = _text(place)
    if text is None:
        return ExcludedNodes()
    found = decode(text, ExcludedNodes)
    if found is None:
        raise OpsctlError(f"{place.excluded} is not a list of nodes. Move it away")
    return found


@contextlib.contextmanager
def changing(place: Place, what: str) -> Iterator[ExcludedNodes]:
    """Lock the list for a change. Raises OpsctlError if it is damaged or of a newer release."""
    make_folder(place.root, place.folder)
    with locked(place.root, place.lock, LOCK_WAIT_S, what):
        text = _text(place)
        known = ExcludedNodes() if text is None else decode(text, ExcludedNodes)
        if known is None:
            raise OpsctlError(f"cannot {what}: {place.excluded} is not a list of nodes. Move it away")
        if known.version > VERSION:
            raise OpsctlError(
                f"cannot {what}: a newer opsctl wrote {place.excluded} (version {known.version}, this opsctl supports "
                f"{VERSION}). Use that release"
            )
        if text is not None:
            try:
                parsed(text, ExcludedNodes)
            except ValueError as error:
                raise OpsctlError(f"cannot {what}: {place.excluded}: {error}. Correct or move it") from None
        yield known


def write_excluded(place: Place, nodes: Sequence[Exclusion], decisions: Sequence[Decision]) -> None:
    """Replace the list and record the decisions. The caller holds the lock of `changing`. Raises OSError."""
    ordered = tuple(sorted(nodes, key=lambda one: one.node))
    for decision in decisions:
        append_state(place.root, place.decisions, decision)
    write_state(place.root, place.excluded, ExcludedNodes(nodes=ordered))


def read_evidence_of(place: Place) -> list[NodeEvidence]:
    """Return all readable lines. Raises OSError."""
    return read_lines(place.root, place.evidence, NodeEvidence)


def evidence_line(one: NodeEvidence) -> str:
    """Return the evidence as one line of text."""
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
    """Return the list that applies to the run; create a shared folder. Raises RunFileError, OpsctlError, OSError."""
    if table.shared is None:
        return own_place(paths)
    folder = Path(table.shared).expanduser()
    if not folder.is_dir():
        open_to(folder, table.group, SHARED)
    return Place(folder, folder)


def evidence_for(paths: RunPaths, place: Place) -> list[NodeEvidence]:
    """Return all evidence at `place`, after adding the run's own to a shared folder.

    Ignores evidence dated more than a day ahead. If the shared folder is not writable, the run still uses its own
    lines. Raises OSError if either cannot be read.
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
