"""Whether the newest checkpoints are what their manifests say, by the sizes of their files."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from opsctl.monitoring.gather.asked import Asked, changed_at
from opsctl.monitoring.snapshot import FaultyCheckpoint, Snapshot
from trainer.formats.checkpoint.manifest import TEMPORARY, checkpoint_folders, fault_of, latest_folder
from trainer.formats.errors import CheckpointError

#: Of more checkpoints the oldest are not looked at: a training goes on from one of the newest.
NEWEST = 3
#: A large checkpoint has thousands of files; a slow file server ends the look after this, the latest comes first.
BUDGET_S = 5.0


def look(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.FILES. Raises CheckpointError or OSError where the checkpoints cannot be listed."""
    root = asked.paths.checkpoints
    try:
        latest = latest_folder(root)
    except CheckpointError:  # which another check says
        latest = None
    folders = checkpoint_folders(root)[:NEWEST]
    if latest is not None:
        folders = [latest, *(one for one in folders if one.name != latest.name)]
    ends_at = time.monotonic() + BUDGET_S
    found = []
    for number, folder in enumerate(folders):
        if number and time.monotonic() >= ends_at:
            break
        fault = fault_of(folder)
        if fault is not None and folder.is_dir():  # one that somebody has just removed is not incomplete
            is_latest = latest is not None and folder.name == latest.name
            found.append(FaultyCheckpoint(folder.name, fault, is_latest, changed_at=changed_at(folder)))
    return replace(seen, faulty=(*found, *_leftovers(root)))


def _leftovers(root: Path) -> list[FaultyCheckpoint]:
    """What saves that never finished have left, or what one that goes on has made so far."""
    try:
        folders = sorted(path for path in root.iterdir() if path.name.startswith(TEMPORARY))
    except FileNotFoundError:
        return []
    return [
        FaultyCheckpoint(one.name, "a save that never finished left it", False, True, changed_at(one))
        for one in folders
    ]
