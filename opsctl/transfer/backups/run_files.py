"""All of a run but its checkpoints, look by look: logs, curves, energy, records, the run file.

A look at a destination is an index, `rest/NUMBER.json`, of every file with its checksum and where it lies; files that
are new or have changed since the look before lie in `rest/NUMBER/`. Nothing there is written over, the index comes
last, and what no kept look names is removed, so that a look is whole at any moment.
"""

from __future__ import annotations

import os
import stat
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
        *("backups.jsonl", "backups-read.jsonl", "data-sums.json"),
    )
)
_LARGEST_LOOK_BYTES = 1 << 28


class LookedAt(msgspec.Struct, frozen=True):
    """One file of a look."""

    bytes: int
    xxh64: str
    changed_ns: int  # its mtime here
    at: str  # where it lies, below `rest/`


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """`rest/NUMBER.json`."""

    schema_version: int = 1
    number: int
    run: str
    run_id: str = ""
    output: str = ""  # the run's output folder, absolute
    run_file: str = ""  # absolute
    at: Moment | None = None
    by: str = ""
    files: dict[str, LookedAt] = {}  # by name: `output/...` below the output folder, `run/...` beside the run file

    def line(self, to: str) -> BackedUp:
        """Return the ledger's line for it: not proven there."""
        return BackedUp(
            to=to,
            what=What.REST,
            of=str(self.number),
            files=len(self.files),
            bytes=sum(file.bytes for file in self.files.values()),
            sent_at=self.at,
            by=self.by,
        )


@dataclass
class Kept:
    """The result of a snapshot."""

    look: Look | None = None  # None: nothing is new
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
        before = newest_look(place.store, numbers)
        known = {} if before is None or _is_lost(place, before.number) else before.files
        number = max(numbers, default=0) + 1
        found = dict(_found(place.paths, table, run_file))
        files, changed = _sorted_out(found, known)
        for root, prefix in _roots(place.paths, run_file):
            part = {name.removeprefix(prefix): Expected(grows=True) for name in changed if name.startswith(prefix)}
            outcome = place.store.put(root, part, f"{FOLDER}/{number}/{prefix.rstrip('/')}", flow=place.flow)
            for name, moved in outcome.moved.items():
                whole = prefix + name
                files[whole] = LookedAt(moved.bytes, moved.xxh64, found[whole], f"{number}/{whole}")
                done.files, done.bytes = done.files + 1, done.bytes + moved.bytes
            for name, fault in outcome.faults.items():
                if os.path.lexists(root / name):  # else it is gone, as files of a run at work go
                    done.problems.append(fault)
                    if prefix + name in known:
                        files[prefix + name] = known[prefix + name]
        if files == known and not done.files:
            return done
        done.look = Look(
            number=number,
            run=place.name,
            run_id=place.run_id,
            output=str(place.paths.output),
            run_file=str(run_file or ""),
            at=now().replace(microsecond=0),
            by=account_and_host(),
            files=dict(sorted(files.items())),
        )
        place.write(f"{FOLDER}/{number}.json", done.look)
        _forget_old_looks(place.store, [*numbers, number])
        done.problems += place.record(replace(done.look.line(place.to), verified_at=done.look.at))
    return done


def numbers_there(store: Store) -> list[int]:
    """Return numbers of all looks there, the oldest first. Raises StoreError."""
    names = (name.removesuffix(".json") for name in store.list(FOLDER) if name.endswith(".json") and "/" not in name)
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def newest_look(store: Store, numbers: Collection[int]) -> Look | None:
    """Return the newest look that can be read; None where there is none. Raises StoreError."""
    for number in sorted(numbers, reverse=True):
        found = decode(store.read(f"{FOLDER}/{number}.json", 0, None), Look)
        if found is not None and found.number == number:
            return found
    return None


def _roots(paths: RunPaths, run_file: Path | None) -> list[tuple[Path, str]]:
    return [(paths.output, "output/"), *([(run_file.parent, "run/")] if run_file else [])]


def _sorted_out(found: dict[str, int], known: dict[str, LookedAt]) -> tuple[dict[str, LookedAt], list[str]]:
    """Return what stays as the look before has it, and the names of what is to be sent."""
    files, changed = {}, []
    for name, changed_ns in found.items():
        before = known.get(name)
        if before is not None and before.changed_ns == changed_ns:
            files[name] = before
        else:
            changed.append(name)
    # A file removed here may be needed later, so it stays there; only state files follow the present.
    files |= {
        name: before
        for name, before in known.items()
        if name not in found and not _is_state(name) and not is_passing(name.rpartition("/")[2])
    }
    return files, changed


def _found(paths: RunPaths, table: BackupTable, run_file: Path | None) -> Iterator[tuple[str, int]]:
    """Yield (name, mtime) of every plain file that is wanted."""
    wanted = [
        *(paths.folder_of(kind) for kind in KINDS_OF_FILES if getattr(table, kind)),
        *([paths.state, paths.set_aside] if table.state else []),
    ]
    for top in wanted:
        for above, folders, names in os.walk(top):
            if Path(above) == paths.state:
                folders[:] = [one for one in folders if one not in _OF_THE_MOMENT]
                names = [one for one in names if one not in _OF_THE_MOMENT]
            elif top == paths.set_aside:
                folders[:] = [one for one in folders if one not in ("checkpoints", "tensorboard")]
            for name in names:
                if not is_passing(name):
                    yield from _seen(Path(above) / name, paths.output, "output/")
    if table.state:
        for path in (paths.rollbacks, paths.prunes, paths.kill_switch):
            yield from _seen(path, paths.output, "output/")
        if run_file is not None:
            yield from _seen(run_file, run_file.parent, "run/")


def _seen(path: Path, root: Path, prefix: str) -> Iterator[tuple[str, int]]:
    try:
        found = path.lstat()
    except OSError:
        return
    if stat.S_ISREG(found.st_mode):
        yield prefix + str(path.relative_to(root)), found.st_mtime_ns


def _is_state(name: str) -> bool:
    return name.startswith(("output/.opsctl/", "output/kill-switch", "run/"))


def _is_lost(place: Destination, number: int) -> bool:
    """Return whether a verification found that look damaged: then nothing of it is believed, and all is sent again."""
    return any(
        line.lost for line in place.ledger() if (line.to, line.what) == (place.to, What.REST) and str(number) == line.of
    )


def _forget_old_looks(store: Store, numbers: list[int]) -> None:
    """Remove what no kept look names, older ones themselves first."""
    kept, old = numbers[-KEPT:], numbers[:-KEPT]
    store.remove([f"{number}.json" for number in old], FOLDER)
    looks = [decode(store.read(f"{FOLDER}/{number}.json"), Look) for number in kept]
    if any(look is None for look in looks):
        return
    named = {file.at for look in looks if look is not None for file in look.files.values()}
    lying = [name for name in store.list(FOLDER) if "/" in name]
    store.remove([name for name in lying if name not in named], FOLDER)
