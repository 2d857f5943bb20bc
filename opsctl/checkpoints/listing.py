"""What checkpoints there are, each with what is wrong with it, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.checkpoints.backups import BackedUp, What, digest_here
from opsctl.moments import iso, now
from opsctl.output import printable
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment
from trainer.formats.manifest import (
    MANIFEST,
    checkpoint_folders,
    fault_of,
    iteration_of,
    latest_folder,
    read_manifest,
)

_HEAD = ("ITERATION", "SAMPLES", "SAVED", "GB", "BACKUP", "STATE")


class ListedBackup(msgspec.Struct, frozen=True, kw_only=True):
    """A backup of a checkpoint."""

    to: Annotated[str, Meta(description="The destination.")]
    what: Annotated[str, Meta(description="`full`, or `weights`: without optimizer states.")]
    verified_at: Annotated[Moment | None, Meta(description="When all of it was last proven there by checksum.")]
    lost: Annotated[str | None, Meta(description="Why it no longer counts.")]


class ListedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that is called like a checkpoint."""

    iteration: Annotated[int, Meta(description="Iterations done when it was saved.")]
    folder: Annotated[str, Meta(description="Absolute path of its folder.")]
    latest: Annotated[bool, Meta(description="Whether it is what the next task goes on from.")]
    complete: Annotated[bool, Meta(description="Whether its manifest is whole and every file there in its size.")]
    problem: Annotated[str | None, Meta(description="What is wrong with it.")]
    consumed_samples: Annotated[int | None, Meta(description="Samples consumed when it was saved.")]
    bytes: Annotated[int | None, Meta(description="Size of its files together.")]
    saved_at: Annotated[Moment | None, Meta(description="When it was whole.")]
    pinned: Annotated[bool, Meta(description="Whether its iteration was named, so that no pruning takes it.")]
    backups: Annotated[
        list[ListedBackup], Meta(description="Where this very save is backed up, as the ledger has it.")
    ] = []


def listed(checkpoints: Path, ledger: Sequence[BackedUp] = ()) -> list[ListedCheckpoint]:
    """All there are, oldest first, every file's size looked at. Raises CheckpointError where nobody can see them."""
    try:
        latest = latest_folder(checkpoints)
    except CheckpointError:
        latest = None
    return [_listed(folder, latest, ledger) for folder in reversed(checkpoint_folders(checkpoints))]


def checkpoint_table(found: Sequence[ListedCheckpoint]) -> list[str]:
    """Lines of a table."""
    rows = [_HEAD, *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    return [
        "  ".join((*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1])).rstrip()
        for row in rows
    ]


def _listed(folder: Path, latest: Path | None, ledger: Sequence[BackedUp]) -> ListedCheckpoint:
    iteration, fault = iteration_of(folder.name), fault_of(folder)
    assert iteration is not None, "it is called like a checkpoint"
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
        consumed_samples=manifest.consumed_train_samples if manifest else None,
        bytes=sum(file.bytes for file in manifest.files.values()) if manifest else None,
        saved_at=saved_at(folder) if manifest else None,
        pinned=manifest.pinned if manifest else False,
        backups=_backups(folder, iteration, ledger),
    )


def _backups(folder: Path, iteration: int, ledger: Sequence[BackedUp]) -> list[ListedBackup]:
    of = digest_here(folder) if ledger else None
    return [
        ListedBackup(to=line.to, what=line.what, verified_at=line.verified_at, lost=line.lost or None)
        for line in ledger
        if of is not None and (line.iteration, line.of) == (iteration, of)
    ]


def saved_at(folder: Path) -> datetime | None:
    """When its manifest was written; None where that cannot be seen."""
    try:
        return datetime.fromtimestamp((folder / MANIFEST).stat().st_mtime, now().tzinfo).replace(microsecond=0)
    except OSError:
        return None


def _backup(backups: Sequence[ListedBackup]) -> str:
    """The best there is of it somewhere."""
    for what in (What.FULL, What.WEIGHTS):
        if any(one.what == what and not one.lost and one.verified_at is not None for one in backups):
            return what.value
    return "lost" if any(one.lost for one in backups) else "-"


def _row(one: ListedCheckpoint) -> tuple[str, ...]:
    return (
        str(one.iteration),
        "?" if one.consumed_samples is None else str(one.consumed_samples),
        iso(one.saved_at, "minutes") or "?",
        "?" if one.bytes is None else f"{one.bytes / 1e9:.3g}",
        _backup(one.backups),
        printable(one.problem or "complete") + (", latest" if one.latest else "") + (", pinned" if one.pinned else ""),
    )
