"""Snapshots of all of a run but its checkpoints: logs, curves, energy, records, the run file.

A snapshot at a destination is an index, `rest/NUMBER.json`, of every file with its checksum and where it is stored.
Files that are new or have changed since the previous snapshot are stored in `rest/NUMBER/`. Nothing there is
overwritten, the index comes last, and what no kept snapshot names is removed, so a snapshot is complete at any moment.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from opsctl.core.account import account_and_host
from opsctl.core.timestamps import now
from opsctl.run.checkpoints.backups import BackedUp, What
from opsctl.run.config.file_kinds import KINDS_OF_FILES, is_passing
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import BackupTable
from opsctl.transfer.backups.destination import Destination
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import Expected
from opsctl.transfer.sending.plan import SeenFile, files_below, seen_file
from trainer.formats.json_text import Moment
from trainer.formats.tolerant import decode

FOLDER = "rest"
#: The number of kept snapshots: a file that was damaged here is still intact in an earlier one.
KEPT = 3
#: State that is of this moment, this host or this folder alone; and the ledger, which is found at the destination.
_OF_THE_MOMENT = frozenset(
    (
        *("lock", "lease.jsonl", "submitting.json", "reading", "walk.json", "kill-switch.reserve", "alerts.sending"),
        *("alerts.reserve", "evaluating", "hub.sending", "restored.json"),
        *("backups.jsonl", "data-sums.json"),
    )
)
_LARGEST_LOOK_BYTES = 1 << 28


class SnapshotFile(msgspec.Struct, frozen=True):
    """One file of a snapshot."""

    bytes: int
    xxh64: str
    changed_ns: int  # its mtime here
    at: str  # where it lies, below `rest/`


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`rest/NUMBER.json`."""

    schema_version: int = 1
    number: int
    run: str
    run_id: str = ""
    output: str = ""  # the run's output folder, absolute
    run_file: str = ""  # absolute
    at: Moment | None = None
    by: str = ""
    files: dict[str, SnapshotFile] = {}  # by name: `output/...` below the output folder, `run/...` beside the run file

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.bytes for file in self.files.values())

    def line(self, to: str) -> BackedUp:
        """Return the ledger's line for it: not proven there."""
        return BackedUp(
            to=to,
            what=What.REST,
            of=str(self.number),
            files=len(self.files),
            bytes=self.bytes,
            sent_at=self.at,
            by=self.by,
        )


@dataclass
class Kept:
    """The result of a snapshot."""

    snapshot: Snapshot | None = None  # None: nothing is new
    files: int = 0  # sent
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


def back_up_rest(place: Destination, table: BackupTable, run_file: Path | None, emptied: bool = False) -> Kept:
    """Send all changed files that `table` names. emptied: also if the place was emptied.

    Raises OpsctlError while another backup uses it, StoreError.
    """
    done = Kept()
    with place.turn():
        place.claim(emptied)
        numbers = numbers_there(place.store)
        before = newest_snapshot(place.store, numbers)
        known = {} if before is None or _is_lost(place, before.number) else before.files
        number = max(numbers, default=0) + 1
        # A file that was removed here may be needed later, so it stays there; only state follows the present.
        files = {name: one for name, one in known.items() if not _is_state(name) and not is_passing(Path(name).name)}
        for root, prefix, found in _found(place.paths, table, run_file, done.problems):
            here = {one.name: one.mtime_ns for one in found}
            same = {
                name for name, at in here.items() if prefix + name in known and known[prefix + name].changed_ns == at
            }
            changed = {name: Expected(grows=True) for name in here.keys() - same}
            outcome = place.store.put(root, changed, f"{FOLDER}/{number}/{prefix.rstrip('/')}", place.flow)
            files |= {prefix + name: known[prefix + name] for name in same}
            for name, moved in outcome.moved.items():
                at = f"{number}/{prefix}{name}"
                files[prefix + name] = SnapshotFile(moved.bytes, moved.xxh64, here[name], at)
                done.files, done.bytes = done.files + 1, done.bytes + moved.bytes
            for name, fault in outcome.faults.items():
                if os.path.lexists(root / name):  # else it is gone, as files of a run at work go
                    done.problems.append(fault)
                    files |= {one: known[one] for one in [prefix + name] if one in known}
        if files == known and not done.files:
            return done
        done.snapshot = Snapshot(
            number=number,
            run=place.name,
            run_id=place.run_id,
            output=str(place.paths.output),
            run_file=str(run_file or ""),
            at=now().replace(microsecond=0),
            by=account_and_host(),
            files=dict(sorted(files.items())),
        )
        place.write(f"{FOLDER}/{number}.json", done.snapshot)
        _forget_old_snapshots(place.store, [*numbers, number])
        done.problems += place.record(replace(done.snapshot.line(place.to), verified_at=done.snapshot.at))
    return done


def numbers_there(store: Store) -> list[int]:
    """Return numbers of all snapshots there, the oldest first. Raises StoreError."""
    names = (name.removesuffix(".json") for name in store.list(FOLDER) if name.endswith(".json") and "/" not in name)
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def newest_snapshot(store: Store, numbers: Collection[int]) -> Snapshot | None:
    """Return the newest snapshot that can be read; None where there is none. Raises StoreError."""
    for number in sorted(numbers, reverse=True):
        found = decode(store.read(f"{FOLDER}/{number}.json", 0, None), Snapshot)
        if found is not None and found.number == number:
            return found
    return None


def _found(
    paths: RunPaths, table: BackupTable, run_file: Path | None, unseen: list[str]
) -> Iterator[tuple[Path, str, list[SeenFile]]]:
    """Yield (root, prefix in the snapshot, the plain files that are wanted) for the output folder and the run file."""
    output = paths.output
    found = [
        one
        for kind in KINDS_OF_FILES
        if getattr(table, kind)
        for one in files_below(paths.folder_of(kind), output, unseen)
    ]
    if table.state:
        state, aside = paths.state.name, paths.set_aside.relative_to(output).parts
        for one in (*files_below(paths.state, output, unseen), *files_below(paths.set_aside, output, unseen)):
            parts = Path(one.name).parts
            is_of_the_moment = parts[0] == state and parts[1] in _OF_THE_MOMENT
            is_large = parts[: len(aside)] == aside and {"checkpoints", "tensorboard"} & set(parts)
            found += [] if is_of_the_moment or is_large else [one]
        for path in (paths.rollbacks, paths.prunes, paths.kill_switch):
            found += seen_file(path, output)
    yield output, "output/", found
    if table.state and run_file is not None:
        yield run_file.parent, "run/", list(seen_file(run_file, run_file.parent))


def _is_state(name: str) -> bool:
    return name.startswith(("output/.opsctl/", "output/kill-switch", "run/"))


def _is_lost(place: Destination, number: int) -> bool:
    """Return whether a verification found that snapshot damaged: then everything is sent again."""
    return any(line.lost for line in place.ledger() if line.what is What.REST and line.of == str(number))


def _forget_old_snapshots(store: Store, numbers: list[int]) -> None:
    """Remove what no kept snapshot names, older ones themselves first."""
    kept, old = numbers[-KEPT:], numbers[:-KEPT]
    store.remove([f"{number}.json" for number in old], FOLDER)
    snapshots = [decode(store.read(f"{FOLDER}/{number}.json"), Snapshot) for number in kept]
    if any(snapshot is None for snapshot in snapshots):
        return
    named = {file.at for snapshot in snapshots if snapshot is not None for file in snapshot.files.values()}
    lying = [name for name in store.list(FOLDER) if "/" in name]
    store.remove([name for name in lying if name not in named], FOLDER)
