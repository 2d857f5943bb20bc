"""The ledger of what of a run is backed up where: `.opsctl/backups.jsonl`.

A line is all that is known of one thing at one destination; the last one of each counts. What the ledger has lost is
found again at the destination, which explains itself, so that a full disk here loses nothing.
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
from opsctl.core.files.state_files import append_state, locked, read_lines, read_text, write_atomically
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.run_view import RunView
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import MANIFEST, Manifest, checkpoint_folders, fault_of, read_manifest
from trainer.formats.checkpoint.starting import without_optimizer
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment, json_line

LOCK_WAIT_S = 30.0
#: Fewer lines than this are not worth writing anew.
_FEW = 200


class What(StrEnum):
    """What of a run is at a destination."""

    FULL = "full"  # a checkpoint with all its files
    WEIGHTS = "weights"  # one without optimizer states
    REST = "rest"  # logs, curves, state
    DATA = "data"  # data sets, all that the options name

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self]

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is one of several, each with its iteration."""
        return self in (What.FULL, What.WEIGHTS)


_WORDS = {
    What.FULL: "whole",
    What.WEIGHTS: "without optimizer states",
    What.REST: "logs and records",
    What.DATA: "data sets",
}


class BackedUp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the ledger."""

    to: str  # URL
    what: What
    iteration: int = 0  # 0 for what is no checkpoint
    of: str = ""  # checksum of the manifest that the checkpoint had here: another save of that name is another one
    form: str = "files"  # or "tar"
    files: int = 0
    bytes: int = 0
    sent_at: Moment | None = None
    by: str = ""  # user@host
    verified_at: Moment | None = None  # when all of it was last proven there by checksum; None: never
    proof: str = ""  # what the store said of the files then (`backups.far`); the proof holds while it says the same
    lost: str = ""  # why it no longer counts; empty while it does

    @property
    def counts(self) -> bool:
        """Whether it may be relied on."""
        return not self.lost and self.verified_at is not None

    @property
    def key(self) -> tuple[str, int, What]:
        """What the line speaks of."""
        return self.to, self.iteration, self.what


def digest_here(folder: Path) -> str | None:
    """`digest_of` of the checkpoint in `folder`; None where there is no manifest to be read."""
    try:
        text = read_text(folder, folder / MANIFEST)
    except OSError:
        return None
    return None if text is None else digest_of(text.encode())


def read_backups(paths: RunPaths) -> list[BackedUp]:
    """What is on record, each thing once, as last told, in the order in which it came. Raises OSError."""
    return _newest(read_lines(paths.output, paths.backups, BackedUp))


def record(paths: RunPaths, lines: Iterable[BackedUp]) -> None:
    """Put lines on record; writes the file anew when it is long. Raises OSError, OpsctlError where its lock is held."""
    with locked(paths.output, paths.backups_lock, LOCK_WAIT_S, "put backups on record"):
        for line in lines:
            append_state(paths.output, paths.backups, line)
        all_lines = read_lines(paths.output, paths.backups, BackedUp)
        kept = _newest(all_lines)
        if len(all_lines) > max(_FEW, 2 * len(kept)):
            write_atomically(paths.output, paths.backups, "".join(f"{json_line(one)}\n" for one in kept))


def where_full(lines: Iterable[BackedUp], iteration: int, of: str | None) -> list[str]:
    """Destinations that have this very checkpoint whole, proven there and not lost since."""
    return [
        line.to for line in lines if (line.iteration, line.what, line.of) == (iteration, What.FULL, of) and line.counts
    ]


def places_named(run: RunView) -> frozenset[str]:
    """Destinations that the published [backup] names, as the ledger calls them; before that those of the run file."""
    file = run.revision.file if run.revision else run.loaded.file if run.loaded else None
    return frozenset(map(plain_url, file.backup.to)) if file is not None and file.backup is not None else frozenset()


def plain_url(to: str) -> str:
    """A destination as the ledger calls it, so that one place has one name."""
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


def _newest(lines: Iterable[BackedUp]) -> list[BackedUp]:
    found: dict[tuple[str, int, What], BackedUp] = {}
    for line in lines:
        found[line.key] = line
    return list(found.values())


@dataclass(frozen=True)
class Every:
    """How often checkpoints leave, in iterations; 0: never by number."""

    full: int = 0  # with all their files
    weights: int = 0  # without optimizer states, where a whole one does not leave

    def form(self, iteration: int) -> What | None:
        """In which form one leaves; None where none does. The beginning, before any iteration, is no interval's end."""
        if divides(self.full, iteration):
            return What.FULL
        return What.WEIGHTS if divides(self.weights, iteration) else None


def divides(every: int, iteration: int) -> bool:
    """Whether an iteration is one of every so many."""
    return every > 0 and iteration > 0 and iteration % every == 0


def sent_as(manifest: Manifest, what: What) -> Manifest:
    """The manifest of what is sent in that form: a place has no file that its manifest does not name."""
    return without_optimizer(manifest) if what is What.WEIGHTS else manifest


def folders_oldest_first(checkpoints: Path) -> list[Path]:
    """Every checkpoint's folder, whole or not. Raises OpsctlError where nobody can see them."""
    try:
        return checkpoint_folders(checkpoints)[::-1]
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None


def manifest_or_fault(folder: Path) -> Manifest | str:
    """A complete checkpoint's manifest, or why it is none that can leave."""
    fault = fault_of(folder)
    if fault is not None:
        return fault
    try:
        return read_manifest(folder)
    except CheckpointError as error:  # it went this moment
        return str(error)
