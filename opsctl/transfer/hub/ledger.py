"""The ledger of sent files: a line for each file in a repository, so that the hub is not asked when nothing changed.

The repository is the truth: lines missing here are found there again, and `hub status` finds wrong ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from opsctl.core.files.state_files import append_bytes, read_lines, write_atomically
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from trainer.formats.json_text import json_line

#: Lines that mean nothing any more, over those that do, before the file is rewritten.
_MOST_OLD_LINES = 4
_FEW_LINES = 2000
Place = tuple[str, str, str]  # repository, revision, path in it


class Sent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file as it is in a repository; or, `gone`, that it is there no more; or, without a content, on its way."""

    repo: str
    revision: str
    path: str
    size: int = 0  # of the file here, when it was read
    mtime_ns: int = 0
    bytes: int = 0  # of it that were sent: a log's last line may not have been whole
    sha256: str = ""  # of those
    git_oid: str = ""  # and git's name of a blob of those, where it can be one
    xxh64: str = ""  # of a checkpoint's file, as its manifest has it
    commit: str = ""
    at: datetime | None = None
    gone: bool = False

    @property
    def is_known(self) -> bool:
        """Return whether its content is there, as far as is known here."""
        return bool(self.sha256 or self.git_oid)

    @property
    def place(self) -> Place:
        """Return where it is."""
        return (self.repo, self.revision, self.path)


def sent_files(paths: RunPaths) -> dict[Place, Sent]:
    """Return what is in the repositories, as far as is known here. Raises OSError where the ledger cannot be read."""
    found: dict[Place, Sent] = {}
    for line in read_lines(paths.output, paths.hub_ledger, Sent):
        if line.gone:
            found.pop(line.place, None)
        else:
            found[line.place] = line
    return found


def add_to_ledger(paths: RunPaths, lines: Iterable[Sent]) -> None:
    """Append what was sent or went. Raises OSError: then the next sync finds it in the repository."""
    data = "".join(f"{json_line(msgspec.structs.replace(one, at=now()))}\n" for one in lines)
    if data:
        append_bytes(paths.output, paths.hub_ledger, data.encode())


def compact_ledger(paths: RunPaths) -> None:
    """Rewrite the ledger if most of its lines are obsolete; for the one uploader. Raises OSError."""
    lines = len(read_lines(paths.output, paths.hub_ledger, Sent))
    if lines <= _FEW_LINES:
        return
    there = sent_files(paths)
    if lines > _MOST_OLD_LINES * len(there):
        text = "".join(f"{json_line(one)}\n" for one in there.values())
        write_atomically(paths.output, paths.hub_ledger, text)
