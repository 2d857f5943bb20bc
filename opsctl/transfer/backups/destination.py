"""One destination of a run's backups: its owner, one backup at a time, and sending checkpoints to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import locked, make_folder
from opsctl.run.checkpoints.backups import BackedUp, read_backups, record
from opsctl.run.checkpoints.inventory import latest_iteration
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import BackupTable
from opsctl.run.state.identity import read_run_id
from opsctl.transfer.backups.remote_layout import (
    NOTE,
    FarCheckpoint,
    expected,
    find_all,
    folder_of,
    read_note,
    state_of,
)
from opsctl.transfer.backups.schedule import rules_of
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.folder import FolderStore
from opsctl.transfer.object_store.sources import bytes_source
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.sending.checkpoint import Sending, Sent, record_sent, send_all
from opsctl.transfer.sending.plan import Chosen, checkpoints_here, choose, whole_here
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import MANIFEST, check_checksums
from trainer.formats.json_text import json_file_text
from trainer.formats.tolerant import decode

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
    form = "files"

    @property
    def where(self) -> str:
        """Return the URL without any secret."""
        return self.store.where

    @property
    def run_id(self) -> str:
        """Return the run's id; empty where it has none yet."""
        return read_run_id(self.paths) or ""

    def write(self, name: str, content: bytes | msgspec.Struct) -> None:
        """Put a file there that is nowhere else. Raises StoreError, FileFault."""
        data = content if isinstance(content, bytes) else json_file_text(content).encode()
        self.store.put_source(bytes_source(name, data), name, self.flow)

    def ledger(self) -> list[BackedUp]:
        """Return what is on record for this destination. Raises OpsctlError where it cannot be read."""
        try:
            return [line for line in read_backups(self.paths) if line.to == self.to]
        except OSError as error:
            raise OpsctlError(f"cannot read the ledger: {file_problem(error, self.paths.backups)}") from None

    def record(self, line: BackedUp) -> list[str]:
        """Record a copy; return the problem if the ledger cannot be written."""
        return record_sent(self.paths, [line], self.paths.backups)

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
        refuse_another_runs(there, self.name, self.run_id, self.where)
        if there is not None and there.run_id and not self.run_id:  # as of a restored copy, which may have its name
            raise OpsctlError(
                f"{self.where} has the copies of the run with the id {there.run_id}, and {self.name} has no id: "
                "give each run a separate place in [backup] to"
            )
        if there is None and not emptied and self.ledger():
            raise OpsctlError(
                f"{self.where} had copies of {self.name} and has no {NOTE} now: is it mounted? "
                "If it was emptied on purpose, add --emptied"
            )
        wanted = FarRun(run=self.name, run_id=self.run_id)
        if there != wanted:
            self.write(NOTE, wanted)

    def refuse_the_runs_own_folder(self) -> None:
        """Raise OpsctlError where a copy would be the original itself, or be removed with it."""
        if not isinstance(self.store, FolderStore):
            return
        to = Path(self.where).resolve()
        if any(one.samefile(self.paths.output) for one in (to, *to.parents)):
            raise OpsctlError(f"{self.where} is in the run's own folder {self.paths.output}: give another place")

    def has(self, sending: Sending) -> bool:
        """Return False: only `send_files`, which reads what is there, proves it."""
        return False

    def send_files(self, sending: Sending) -> None:
        """Have all files there, each proven; the manifest of another save is removed before.

        Raises OpsctlError if that is another run's, CheckpointError if what is to take its place is damaged here.
        """
        prefix, line = folder_of(sending.line.what, sending.line.iteration), sending.line
        note = read_note(self.store, f"{prefix}/{NOTE}", FarCheckpoint)
        if note is not None and note.run:
            owner = FarRun(run=note.run, run_id=note.run_id)
            refuse_another_runs(owner, self.name, self.run_id, f"{self.where}/{prefix}")
        manifest_there = self.store.read_if_there(f"{prefix}/{MANIFEST}")
        if manifest_there not in (None, sending.text):
            check_checksums(self.paths.checkpoints / sending.tag, sending.manifest)  # the one there may be the better
            gone = BackedUp(to=self.to, what=line.what, iteration=line.iteration, lost="another one takes its place")
            record(self.paths, [gone])
            self.store.remove([MANIFEST], prefix)
            self.store.remove([name for name in self.store.list(prefix) if name != NOTE], prefix)
        note = FarCheckpoint(
            run=self.name,
            run_id=self.run_id,
            iteration=line.iteration,
            what=line.what,
            of=line.of,
            files=line.files,
            bytes=line.bytes,
            left_out=sending.left_out,
            sent_at=line.sent_at,
            by=line.by,
        )
        self.write(f"{prefix}/{NOTE}", note)
        self.store.put(sending.folder, expected(sending.manifest.files), prefix, self.flow).raise_faults()

    def send_manifest(self, sending: Sending) -> None:
        """Put the manifest there."""
        self.write(f"{folder_of(sending.line.what, sending.line.iteration)}/{MANIFEST}", sending.text)

    def proof(self, sending: Sending) -> str:
        """Return the state of its listing."""
        return state_of(self.store.list(folder_of(sending.line.what, sending.line.iteration)), sending.manifest)


@dataclass(frozen=True)
class Wish:
    """The wishes of a command beyond the policy."""

    named: tuple[int, ...] | None = None  # these instead of what the schedule says
    weights_only: bool = False
    emptied: bool = False  # also where the place was emptied


def plan_backup(place: Destination, table: BackupTable, wish: Wish) -> Chosen:
    """Return the checkpoints that the destination should have and has not.

    What the ledger has lost of this destination is found there again. Raises OpsctlError, StoreError.
    """
    lines = place.ledger() or [one.note.line(place.to) for one in find_all(place.store)[0]]
    found, latest = checkpoints_here(place.paths), latest_iteration(place.paths.checkpoints)
    chosen = choose(found, lines, place.to, rules_of(table), latest, wish.named, wish.weights_only)
    return whole_here(place.paths, chosen)


def back_up(place: Destination, table: BackupTable, wish: Wish, report: Callable[[str], None]) -> Sent:
    """Send the checkpoints that the destination should have and has not, the newest first.

    report: gets a line for each. Raises OpsctlError where another backup is running, or the place is another run's;
    StoreError where the store can do no more.
    """
    with place.turn():
        place.claim(wish.emptied)
        due = plan_backup(place, table, wish).due
        return send_all(place, place.paths, place.to, place.paths.backups, due, report)


def read_run(store: Store) -> FarRun | None:
    """Return the owner of the copies there; None where no note says it. Raises StoreError."""
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
    remedy: str = "give each run a separate place in [backup] to",
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
