"""What saves that were cut off have left beside the checkpoints: a whole one is put back, the rest goes."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainer.core.console import complain
from trainer.core.files import fsync
from trainer.core.held_folder import HeldFolder
from trainer.formats.checkpoint.manifest import TEMPORARY, check_sizes, fault_of, read_manifest, replaced_under
from trainer.formats.errors import CheckpointError


def clear_leftovers(folder: HeldFolder) -> None:
    """Put back what was set aside and not replaced, and remove whatever else no save has finished. Raises OSError.

    What cannot be removed stays and is told: the names of the next save's folders are its own.
    """
    root = folder.place()
    kept = {one for one, was in replaced_under(root) if not _is_replaced(one, was)}
    for leftover in root.glob(f"{TEMPORARY}*"):
        if leftover not in kept:
            shutil.rmtree(leftover, ignore_errors=True)
            if leftover.exists():
                complain(folder.said(f"trainer: {leftover}, left by a save that was cut off, cannot be removed"))
    for leftover in root.glob(".*.tmp"):  # beside `latest` and DeepSpeed's programs, by `write_atomically`
        leftover.unlink(missing_ok=True)


def _is_replaced(set_aside: Path, was: Path) -> bool:
    """Whether nobody needs what was set aside any more: another one has its place, or it has it again."""
    if was.exists():
        return fault_of(was) is None or not _is_whole(set_aside)
    if _is_whole(set_aside):
        set_aside.rename(was)
        fsync(was.parent)
    return True


def _is_whole(folder: Path) -> bool:
    try:
        check_sizes(folder, read_manifest(folder))
    except CheckpointError:
        return False
    return True
