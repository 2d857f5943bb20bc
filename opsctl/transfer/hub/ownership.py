"""The owner of a repository, and the places of the rest of that run: `opsctl.json` on its main, read before sending.

Two runs in one repository would overwrite each other, a restored copy of a run its original. The note is read only by a
process with something to send, and written in a commit that is made anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from opsctl.run.config.paths import RunPaths
from opsctl.run.state.identity import is_same_run, read_run_id, refuse_a_copy
from opsctl.transfer.hub.file_snapshot import Moment, open_bytes
from opsctl.transfer.hub.hub_errors import Refused
from opsctl.transfer.hub.repository import MAIN, Repository
from opsctl.transfer.hub.settings import HubSettings
from trainer.formats.json_text import json_file_text
from trainer.formats.tolerant import decode

NOTE = "opsctl.json"
LARGEST_NOTE_BYTES = 1 << 16
_ABOUT = "Of one training, sent by opsctl hub sync. Another run's sync leaves this repository alone."


class FarNote(msgspec.Struct, frozen=True, kw_only=True):
    """`opsctl.json` of a repository."""

    schema_version: int = 1
    about: str = _ABOUT
    run: str  # its name
    run_id: str = ""
    repos: dict[str, str] = {}  # kind -> repository, of all that the run sends
    checkpoints: str = ""  # how they lie there, one of runs.schema.HUB_CHECKPOINTS


def note_of(paths: RunPaths, name: str, settings: HubSettings) -> FarNote:
    """Return what the run's repositories say. Raises OpsctlError for a copy that is no run of its own yet."""
    refuse_a_copy(paths, "send to the hub")
    how = settings.table.checkpoints or ""
    return FarNote(run=name, run_id=read_run_id(paths) or "", repos=settings.repos, checkpoints=how)


def read_note(data: bytes) -> FarNote | None:
    """Parse the note; None if it cannot be read."""
    return decode(data, FarNote) if len(data) <= LARGEST_NOTE_BYTES else None


@dataclass
class Claimed:
    """A repository that is this run's, or that will be with the next commit."""

    remote: Repository
    unsaid: bytes = b""  # its note, where it does not say so yet

    @contextlib.contextmanager
    def note(self) -> Iterator[dict[str, Moment]]:
        """Yield the note for a commit, or nothing. It counts as written when the block ends without an error."""
        if not self.unsaid:
            yield {}
            return
        with Moment(open_bytes(self.unsaid)) as moment:
            yield {NOTE: moment}
        self.unsaid = b""


def claim(remote: Repository, own: FarNote) -> Claimed:
    """Check the owner. Raises Refused if it is another run's, or unknown."""
    said = json_file_text(own).encode()
    there = remote.listed(MAIN, [NOTE]).get(NOTE)
    with Moment(open_bytes(said)) as moment:
        if there is not None and there.has_content(moment.sha256, moment.git_oid):
            return Claimed(remote)
    data = None if there is None else remote.read(NOTE)
    if data is not None:
        _refuse_another_runs(remote.name, read_note(data), own)
    return Claimed(remote, said)


def _refuse_another_runs(repo: str, found: FarNote | None, own: FarNote) -> None:
    if found is None:
        raise Refused(f"{repo}: its {NOTE} cannot be read, so its owner is unknown: check this file, or remove it")
    if not is_same_run((found.run, found.run_id), (own.run, own.run_id)):
        raise Refused(
            f"{repo} is another run's, {found.run} (id {found.run_id or 'unknown'}), and {own.run} has "
            f"{f'the id {own.run_id}' if own.run_id else 'no id'}: give each run repositories of its own in [hub], or "
            f"remove {NOTE} there if this one is to go on in its place"
        )
