"""The record of who let which checkpoint be the latest."""

from __future__ import annotations

from opsctl.core.files.state_files import append_state, read_lines
from opsctl.run.config.paths import RunPaths
from trainer.formats.checkpoint.rollbacks import Rollback


def append_rollback(paths: RunPaths, rollback: Rollback) -> None:
    """Put it on record. Raises OSError."""
    append_state(paths.output, paths.rollbacks, rollback)


def read_rollbacks(paths: RunPaths) -> list[Rollback]:
    """All on record, oldest first. Raises OSError where they cannot be read."""
    return read_lines(paths.output, paths.rollbacks, Rollback)
