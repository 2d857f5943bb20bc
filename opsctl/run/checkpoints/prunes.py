"""Who had which checkpoint pruned."""

from __future__ import annotations

import msgspec

from opsctl.core.files.state_files import append_state, read_lines
from opsctl.run.config.paths import RunPaths
from trainer.formats.json_text import Moment


class Pruned(msgspec.Struct, frozen=True):
    """A line of `checkpoints/prunes.jsonl`; it is there before the checkpoint goes, unless the disk was full."""

    iteration: int
    bytes: int = 0
    by: str = ""  # user@host
    at: Moment | None = None


def append_prune(paths: RunPaths, pruned: Pruned) -> None:
    """Put it on record. Raises OSError."""
    append_state(paths.output, paths.prunes, pruned)


def read_prunes(paths: RunPaths) -> list[Pruned]:
    """All on record, oldest first. Raises OSError where they cannot be read."""
    return read_lines(paths.output, paths.prunes, Pruned)
