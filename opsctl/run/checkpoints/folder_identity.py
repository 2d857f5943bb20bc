"""Telling one checkpoint's folder from another that has its name later."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from opsctl.core.files.trusted import opened_folder
from trainer.formats.checkpoint.manifest import MANIFEST


def mark_of(root: Path, folder: Path) -> str:
    """What stays with the folder when it is moved on its file system, and another one has not.

    Numbers of folders are given again, so the time at which it was whole is part of it. root: the run's output folder.
    Raises OSError, Untrusted for a link or somebody else's.
    """
    with opened_folder(root, folder) as (opened, _):
        number, whole_ns = os.fstat(opened).st_ino, 0
        with contextlib.suppress(FileNotFoundError):
            whole_ns = os.stat(MANIFEST, dir_fd=opened, follow_symlinks=False).st_mtime_ns
    return f"{number}.{whole_ns}"
