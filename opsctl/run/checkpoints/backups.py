"""The ledgers of a run's copies: `.opsctl/backups.jsonl` of its backups, `.opsctl/hub.jsonl` of the hub.

A line describes one thing at one destination; its last line counts. A lost ledger is restored from the destinations,
which describe themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import append_bytes, locked, read_lines, read_text, write_atomically
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.run_view import RunView
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import MANIFEST, Manifest, checkpoint_folders, fault_of, read_manifest
from trainer.formats.checkpoint.starting import without_optimizer
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment, json_line

LOCK_WAIT_S = 30.0
#: Fewer lines than this are not rewritten.
_FEW = 200


class What(StrEnum):
    """The kind of data at a destination."""

    FULL = "full"  # a checkpoint with all its files
    WEIGHTS = "weights"  # one without optimizer states
    REST = "rest"  # logs, curves, state
    DATA = "data"  # data sets that the options name
    FILE = "file"  # one file of a hub's repository

    @property
    def words(self) -> str:
        """Return the kind in words."""
        return _WORDS[self]

    @property
    def is_checkpoint(self) -> bool:
        """Return True for kinds with an iteration each."""
        return self in (What.FULL, What.WEIGHTS)


_WORDS = {
    What.FULL: "whole",
    What.WEIGHTS: "without optimizer states",
    What.REST: "logs and records",
    What.DATA: "data sets",
    What.FILE: "file",
}


class BackedUp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the ledger."""

    to: str  # URL, or a hub's OWNER/NAME
    what: What
    iteration: int = 0  # 0 for other kinds than checkpoints
    name: str = ""  # of a single file, here and there
    of: str = ""  # checksum of the checkpoint's manifest here: another save of that name has another one
    form: str = "files"  # on a hub "folder" or "branch"
    size: int = 0  # of a single file here, when it was read; a log is sent by whole lines
    mtime_ns: int = 0
    files: int = 0
    bytes: int = 0
    sent_at: Moment | None = None
    by: str = ""  # user@host
    verified_at: Moment | None = None  # time of the last complete check by checksum; None: never
    proof: str = ""  # the destination's listing at that time; the check is valid while it is the same
    lost: str = ""  # why it no longer counts; empty while it does

    @property
    def counts(self) -> bool:
        """Return True if the backup is reliable."""
        return not self.lost and self.verified_at is not None

    @property
    def key(self) -> tuple[str, int, What, str]:
        """Return the identity of the thing that the line describes."""
        return self.to, self.iteration, self.what, self.name


def digest_here(folder: Path) -> str | None:
    """Return `digest_of` of the checkpoint in `folder`; None without a readable manifest."""
    try:
        text = read_text(folder, folder / MANIFEST)
    except OSError:
        return None
    return None if text is None else digest_of(text.encode())


def read_backups(paths: RunPaths) -> list[BackedUp]:
    """Return the newest line of each backup, in order of first appearance. Raises OSError."""
    return newest(read_lines(paths.output, paths.backups, BackedUp))


def read_hub(paths: RunPaths) -> list[BackedUp]:
    """Return the newest line of each file and checkpoint on a hub. Raises OSError."""
    return newest(read_lines(paths.output, paths.hub_ledger, BackedUp))


def record(paths: RunPaths, lines: Iterable[BackedUp], ledger: Path | None = None) -> None:
    """Append lines to a ledger, the backups' by default, and rewrite it if it is long.

    Raises OSError; OpsctlError if its lock is held.
    """
    ledger = ledger or paths.backups
    with locked(paths.output, paths.backups_lock, LOCK_WAIT_S, "record copies"):
        append_bytes(paths.output, ledger, "".join(f"{json_line(one)}\n" for one in lines).encode())
        all_lines = read_lines(paths.output, ledger, BackedUp)
        kept = newest(all_lines)
        if len(all_lines) > max(_FEW, 2 * len(kept)):
            write_atomically(paths.output, ledger, "".join(f"{json_line(one)}\n" for one in kept))


def newest(lines: Iterable[BackedUp]) -> list[BackedUp]:
    """Return the last line of each thing, in order of first appearance."""
    return list({line.key: line for line in lines}.values())


def where_full(lines: Iterable[BackedUp], iteration: int, of: str | None) -> list[str]:
    """Return the destinations with a complete, verified and not lost backup of this save."""
    return [
        line.to for line in lines if (line.iteration, line.what, line.of) == (iteration, What.FULL, of) and line.counts
    ]


def places_named(run: RunView) -> frozenset[str]:
    """Return the destinations of the published [backup], or else of the run file, in the ledger's form."""
    file = run.revision.file if run.revision else run.loaded.file if run.loaded else None
    return frozenset(map(plain_url, file.backup.to)) if file is not None and file.backup is not None else frozenset()


def plain_url(to: str) -> str:
    """Return a destination in the ledger's form, so that each place has one name."""
    if "://" in to:
        return to.rstrip("/")
    return os.path.abspath(os.path.expanduser(to))  # noqa: PTH100, PTH111 - links stay as written


def shown_place(to: str) -> str:
    """Return a destination without a URL's user, password and query, which group members may have written."""
    scheme, is_url, rest = to.partition("://")
    if not is_url:
        return to
    plain = re.split("[?#]", rest, maxsplit=1)[0]
    if re.search(r"@|:(?!\d*$)", plain.partition("/")[0]):
        plain = f"***@{plain.rpartition('@')[2]}"
    return f"{scheme}://{plain}" + ("?***" if re.search("[?#]", rest) else "")


@dataclass(frozen=True)
class Every:
    """The intervals of backups in iterations; 0: none."""

    full: int = 0  # with all their files
    weights: int = 0  # without optimizer states, if no full one is due

    def form(self, iteration: int) -> What | None:
        """Return the form in which a checkpoint is due; None if none. Iteration 0 is never due."""
        if divides(self.full, iteration):
            return What.FULL
        return What.WEIGHTS if divides(self.weights, iteration) else None


def divides(every: int, iteration: int) -> bool:
    """Return True if the iteration is a multiple of `every`."""
    return every > 0 and iteration > 0 and iteration % every == 0


def sent_as(manifest: Manifest, what: What) -> Manifest:
    """Return the manifest of the files that are sent in that form."""
    return without_optimizer(manifest) if what is What.WEIGHTS else manifest


def folders_oldest_first(checkpoints: Path) -> list[Path]:
    """Return every checkpoint's folder, complete or not. Raises OpsctlError if they cannot be listed."""
    try:
        return checkpoint_folders(checkpoints)[::-1]
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None


def manifest_or_fault(folder: Path) -> Manifest | str:
    """Return a complete checkpoint's manifest, or why it cannot be sent."""
    fault = fault_of(folder)
    if fault is not None:
        return fault
    try:
        return read_manifest(folder)
    except CheckpointError as error:  # deleted just now
        return str(error)
