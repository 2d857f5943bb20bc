"""List the checkpoints of a run with their state, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.output import printable, shortened, table_lines
from opsctl.core.timestamps import iso, now
from opsctl.run.checkpoints.backups import BackedUp, digest_here, shown_place
from trainer.formats.checkpoint.exchanged import read_verification
from trainer.formats.checkpoint.manifest import (
    MANIFEST,
    checkpoint_folders,
    fault_of,
    iteration_of,
    latest_folder,
    read_manifest,
)
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment

_HEAD = ("ITERATION", "SAMPLES", "SAVED", "GB", "BACKUP", "STATE")
#: The least width for a destination on a narrow screen.
_LEAST_OF_A_PLACE = 30


class ListedBackup(msgspec.Struct, frozen=True, kw_only=True):
    """A backup of a checkpoint."""

    to: Annotated[str, Meta(description="The destination.")]
    what: Annotated[str, Meta(description="`full`, or `weights`: without optimizer states.")]
    verified_at: Annotated[Moment | None, Meta(description="Time of the last complete check by checksum.")]
    lost: Annotated[str | None, Meta(description="Reason why it no longer counts.")]
    named: Annotated[
        bool | None,
        Meta(description="True if [backup] to names the destination, so that prune relies on it; null if unknown."),
    ]

    @property
    def state(self) -> str:
        """Return the state as a word; only `full` and `weights` count as backups."""
        return "lost" if self.lost else self.what if self.verified_at else "unproven"


class ListedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A folder with a checkpoint's name."""

    iteration: Annotated[int, Meta(description="Iterations done when it was saved.")]
    folder: Annotated[str, Meta(description="Absolute path of its folder.")]
    latest: Annotated[bool, Meta(description="True if the next task resumes from it.")]
    complete: Annotated[
        bool,
        Meta(description="True if manifest and sizes are right, and the last check of its bytes found no damage."),
    ]
    problem: Annotated[str | None, Meta(description="Its problem; null if none.")]
    not_finite: Annotated[
        str | None, Meta(description="Which numbers are NaN or infinite (`--save-non-finite`); null: none.")
    ] = None
    consumed_samples: Annotated[int | None, Meta(description="Samples consumed when it was saved.")]
    bytes: Annotated[int | None, Meta(description="Size of its files together.")]
    saved_at: Annotated[Moment | None, Meta(description="Time at which it was complete.")]
    pinned: Annotated[bool, Meta(description="True if it is pinned, so that prune keeps it.")]
    verified_at: Annotated[
        Moment | None, Meta(description="Time of the last `verify` of all its bytes; null: never.")
    ] = None
    backups: Annotated[list[ListedBackup], Meta(description="Backups of this save according to the ledger.")] = []


def listed(
    checkpoints: Path, ledger: Sequence[BackedUp] = (), named: Collection[str] | None = None
) -> list[ListedCheckpoint]:
    """Return all checkpoints, oldest first, with checked sizes. named: [backup] to. Raises CheckpointError."""
    try:
        latest = latest_folder(checkpoints)
    except CheckpointError:
        latest = None
    return [
        _listed(folder, latest, _backups(folder, ledger, named)) for folder in reversed(checkpoint_folders(checkpoints))
    ]


def checkpoint_table(found: Sequence[ListedCheckpoint], width: int | None = None) -> list[str]:
    """Return the lines of a table, then one for each numbered destination. width: characters; None: unlimited."""
    places = {one.to: one for checkpoint in found for one in checkpoint.backups}
    numbers = {to: f"[{number}]" for number, to in enumerate(sorted(places), 1)}
    lines = table_lines([_HEAD, *(_row(one, numbers) for one in found)], ">>>>><")
    return [*lines, *(_place_line(numbers[to], places[to], width) for to in sorted(places))]


def _place_line(number: str, one: ListedBackup, width: int | None) -> str:
    note = "" if one.named is not False else ", not in [backup] to, so prune does not rely on it"
    room = None if width is None else max(_LEAST_OF_A_PLACE, width - len(f"{number} {note}"))
    return f"{number} {printable(one.to) if room is None else shortened(one.to, room)}{note}"


def _listed(folder: Path, latest: Path | None, backups: list[ListedBackup]) -> ListedCheckpoint:
    iteration, fault = iteration_of(folder.name), fault_of(folder)
    assert iteration is not None, "it has a checkpoint's name"
    try:
        manifest = read_manifest(folder)
    except CheckpointError:
        manifest = None
    return ListedCheckpoint(
        iteration=iteration,
        folder=str(folder),
        latest=folder == latest,
        complete=fault is None,
        problem=fault,
        consumed_samples=(manifest.consumed_train_samples or None) if manifest else None,
        bytes=sum(file.bytes for file in manifest.files.values()) if manifest else None,
        saved_at=saved_at(folder) if manifest else None,
        not_finite=manifest.not_finite if manifest else None,
        pinned=manifest.pinned if manifest else False,
        verified_at=_verified_at(folder),
        backups=backups,
    )


def _verified_at(folder: Path) -> datetime | None:
    try:
        found = read_verification(folder)
    except CheckpointError:  # reported as the problem
        return None
    return found.at if found is not None and found.manifest_xxh64 == digest_here(folder) else None


def _backups(folder: Path, ledger: Sequence[BackedUp], named: Collection[str] | None) -> list[ListedBackup]:
    of = digest_here(folder) if ledger else None
    return [
        ListedBackup(
            to=shown_place(line.to),
            what=line.what,
            verified_at=line.verified_at,
            lost=line.lost or None,
            named=None if named is None else line.to in named,
        )
        for line in ledger
        if of is not None and (line.iteration, line.of) == (iteration_of(folder.name), of)
    ]


def saved_at(folder: Path) -> datetime | None:
    """Return when its manifest was written; None if unknown."""
    try:
        return datetime.fromtimestamp((folder / MANIFEST).stat().st_mtime, now().tzinfo).replace(microsecond=0)
    except OSError:
        return None


def _backup(backups: Sequence[ListedBackup], numbers: Mapping[str, str]) -> str:
    """Return the backups, the best first, with the numbers of their destinations."""
    there = {(one.state, one.to) for one in backups}
    states = {
        state: "".join(number for to, number in numbers.items() if (state, to) in there)
        for state in ("full", "weights", "unproven", "lost")
    }
    return ", ".join(f"{state} {places}" for state, places in states.items() if places) or "-"


def _row(one: ListedCheckpoint, numbers: Mapping[str, str]) -> tuple[str, ...]:
    return (
        str(one.iteration),
        "?" if one.consumed_samples is None else str(one.consumed_samples),
        iso(one.saved_at, "minutes") or "?",
        "?" if one.bytes is None else f"{one.bytes / 1e9:.3g}",
        _backup(one.backups, numbers),
        ", ".join(
            (
                printable(one.problem or "complete"),
                *([f"verified {iso(one.verified_at, 'minutes')}"] if one.verified_at and not one.problem else []),
                *(["latest"] if one.latest else []),
                *(["pinned"] if one.pinned else []),
                *(["not finite"] if one.not_finite else []),
            )
        ),
    )
