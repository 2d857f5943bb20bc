"""One destination of a run's backups: whose copies it has, one backup at a time, and the ledger of what is there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import FULL_DISK, locked, make_folder
from opsctl.run.checkpoints.backups import BackedUp, read_backups, record
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.identity import read_run_id
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.folder import FolderStore
from opsctl.transfer.object_store.sources import bytes_source
from opsctl.transfer.object_store.store import Store
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.json_text import json_file_text
from trainer.formats.tolerant import decode

T = TypeVar("T")

#: The note that says what a folder there is.
NOTE = "backup.json"
#: How long another backup to the same place is waited for: it does the same.
_TURN_WAIT_S = 1.0
_ABOUT = (
    "Copies of one training, made by opsctl. `opsctl restore --from THIS --to FOLDER` brings it back; "
    "checkpoints/ has whole checkpoints, weights/ those without optimizer states; what has no manifest.json is no copy."
)


class FarRun(msgspec.Struct, frozen=True, kw_only=True):
    """`backup.json` of a destination."""

    schema_version: int = 1
    about: str = _ABOUT
    run: str  # its name
    run_id: str = ""


@dataclass(frozen=True)
class Destination:
    """A place for one run's copies."""

    paths: RunPaths
    name: str  # the run's
    to: str  # the URL, as the ledger has it
    store: Store
    flow: Flow

    @property
    def run_id(self) -> str:
        """Return the run's id; empty where it has none yet."""
        return read_run_id(self.paths) or ""

    def write(self, name: str, content: bytes | msgspec.Struct) -> None:
        """Put a file there that is nowhere else. Raises StoreError, FileFault."""
        data = content if isinstance(content, bytes) else json_file_text(content).encode()
        self.store.put_source(bytes_source(name, data), name, self.flow)

    def ledger(self) -> list[BackedUp]:
        """Return what is on record. Raises OpsctlError where it cannot be read."""
        try:
            return read_backups(self.paths)
        except OSError as error:
            raise OpsctlError(f"nothing is backed up: {file_problem(error, self.paths.backups)}") from None

    def record(self, line: BackedUp) -> list[str]:
        """Record a copy; return the problem if the ledger cannot be written. The next backup finds the copy then."""
        try:
            record(self.paths, [line])
        except OSError as error:
            why = FULL_DISK.get(error.errno or 0) or file_problem(error, self.paths.backups)
            return [f"the copy is there, but {self.paths.backups} cannot be written: {why}"]
        return []

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Allow one backup of a run to a place at a time. Raises OpsctlError where another one is running."""
        make_folder(self.paths.output, self.paths.state)
        lock = self.paths.state / f"backup-{digest_of(self.to.encode())}.lock"
        with locked(self.paths.output, lock, _TURN_WAIT_S, f"back up {self.name} to {self.to}"):
            yield

    def claim(self, emptied: bool = False) -> None:
        """Claim the destination for this run. emptied: it was emptied on purpose.

        Raises OpsctlError if it belongs to another run, is the run's own folder, or is empty although the ledger lists
        copies there, as when a disk is not mounted; StoreError.
        """
        self.refuse_the_runs_own_folder()
        there = read_run(self.store)
        refuse_another_runs(there, self.name, self.run_id, self.store.where)
        if there is not None and there.run_id and not self.run_id:  # as of a restored copy, which may have its name
            raise OpsctlError(
                f"{self.store.where} has the copies of the run with the id {there.run_id}, and {self.name} has no id: "
                "give each run a place of its own in [backup] to"
            )
        if there is None and not emptied and any(line.to == self.to for line in self.ledger()):
            raise OpsctlError(
                f"{self.store.where} had copies of {self.name} and has no {NOTE} now: is it mounted? "
                "If it was emptied on purpose, add --emptied"
            )
        wanted = FarRun(run=self.name, run_id=self.run_id)
        if there != wanted:
            self.write(NOTE, wanted)

    def refuse_the_runs_own_folder(self) -> None:
        """Raise OpsctlError where a copy would be the original itself, or be removed with it."""
        if not isinstance(self.store.backend, FolderStore):
            return
        to = Path(self.store.where).resolve()
        if any(one.samefile(self.paths.output) for one in (to, *to.parents)):
            raise OpsctlError(f"{self.store.where} is in the run's own folder {self.paths.output}: give another place")


def read_note(store: Store, name: str, kind: type[T]) -> T | None:
    """Return a note there; None where there is none, or it cannot be read. Raises StoreError."""
    data = store.read_if_there(name)
    return None if data is None else decode(data, kind)


def read_run(store: Store) -> FarRun | None:
    """Return whose copies are there; None where no note says it. Raises StoreError."""
    data = store.read_if_there(NOTE)
    found = None if data is None else decode(data, FarRun)
    if data is not None and found is None:
        raise OpsctlError(
            f"{store.where}/{NOTE} cannot be read, so the owner of the copies there is unknown: check this file"
        )
    return found


def refuse_another_runs(
    found: FarRun | None,
    name: str,
    run_id: str,
    where: str,
    remedy: str = "give each run a place of its own in [backup] to",
) -> None:
    """Raise OpsctlError where a destination is another run's: two runs there would take each other's places."""
    if found is None:
        return
    is_same = found.run_id == run_id if found.run_id and run_id else found.run == name
    if not is_same:
        raise OpsctlError(
            f"{where} has the copies of another run, {found.run} (id {found.run_id or 'unknown'}), "
            f"and {name} has the id {run_id or 'unknown'}: {remedy}"
        )
