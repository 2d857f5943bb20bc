"""A run's data sets at a destination, which several runs may share: each content is there once.

    data/NAME-DIGEST/...              a data set's files, under the names that they had where they were sent from first
    data/NAME-DIGEST/opsctl-data-set.json  its files with their checksums; comes last
    data/runs/NAME-ID.json            the sets that a run's options name, and where it had them

DIGEST is of the contents alone: a set that was renamed or moved is the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.timestamps import now
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.backups import BackedUp, What
from opsctl.transfer.backups.data_sets import FOLDER as WHOLE_FOLDER
from opsctl.transfer.backups.data_sets import PAIR, NamedSet, Reader, opened, part_of
from opsctl.transfer.backups.destination import Destination
from opsctl.transfer.backups.json_output import RestoredData, RestoredDataSet
from opsctl.transfer.backups.remote_layout import read_note
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.folder import fetch
from opsctl.transfer.object_store.sources import Source, digest_of
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import Expected, StoreError
from trainer.formats.checkpoint import exchanged
from trainer.formats.json_text import Moment, json_line
from trainer.recipe.data_options import SPLITS, weighted_file_key

FOLDER = "data"
#: No pair is called so: `PREFIX.json` is one of its files.
NOTE = "opsctl-data-set.json"
_RUNS = f"{FOLDER}/runs"


class Part(msgspec.Struct, frozen=True):
    """One file of a set."""

    bytes: int
    xxh64: str
    name: str  # there

    @property
    def expected(self) -> Expected:
        """Return what the file has to be."""
        return Expected(self.bytes, self.xxh64)


class FarSet(msgspec.Struct, frozen=True, kw_only=True):
    """`opsctl-data-set.json`."""

    schema_version: int = 1
    about: str = "A data set of trainings, copied by opsctl; `opsctl restore --data` brings it back."
    name: str
    parts: dict[str, Part]  # by what each is: `.bin`, `.idx`, `.json`; a name in a folder; nothing
    sent_at: Moment | None = None
    by: str = ""


class OfRun(msgspec.Struct, frozen=True, kw_only=True):
    """One set as a run names it."""

    options: tuple[str, ...]
    kind: str
    path: str  # where it was
    folder: str  # below data/
    parts: dict[str, Part]


class FarRunData(msgspec.Struct, frozen=True, kw_only=True):
    """`data/runs/NAME-ID.json`."""

    schema_version: int = 1
    run: str
    run_id: str = ""
    sets: tuple[OfRun, ...]
    at: Moment | None = None
    by: str = ""

    @property
    def files(self) -> dict[str, Part]:
        """Return every file by its name below data/, once."""
        return {f"{one.folder}/{part.name}": part for one in self.sets for part in one.parts.values()}

    def line(self, to: str) -> BackedUp:
        """Return the ledger's line for them: not proven there."""
        return BackedUp(
            to=to,
            what=What.DATA,
            of=_digest(sorted({one.folder for one in self.sets})),
            files=len(self.files),
            bytes=sum(part.bytes for part in self.files.values()),
            sent_at=self.at,
            by=self.by,
        )


@dataclass
class SentData:
    """The result of a backup of data sets."""

    line: BackedUp | None = None  # None: not all of it is there
    is_new: bool = False  # whether anything had to be sent or written there
    files: int = 0  # sent
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


def read_data_of(store: Store, run: str, run_id: str) -> FarRunData | None:
    """Return what of one run is there; None where nothing is, or its note cannot be read. Raises StoreError."""
    return read_note(store, _note_of_run(run, run_id), FarRunData)


def choose(store: Store, run: str | None) -> FarRunData:
    """Return the run's, by its name or id; without one the only one there. Raises OpsctlError, StoreError."""
    names = sorted(name for name in store.list(_RUNS) if name.endswith(".json"))
    found = [one for name in names if (one := read_note(store, f"{_RUNS}/{name}", FarRunData))]
    fitting = [one for one in found if run in (None, one.run, one.run_id)]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(f"{one.run} ({one.run_id or 'no id'})" for one in found) or "no run"
    raise OpsctlError(f"{store.where} has the data sets of {there}: choose one by its name or id with --run")


def back_up_data(
    place: Destination,
    sets: list[NamedSet],
    report: Callable[[str], None],
    is_shared: bool = False,
    emptied: bool = False,
) -> SentData:
    """Send all `sets` that are not there yet. is_shared: the place is no run's own. report: gets a line for each.

    Raises OpsctlError where another backup of the run to that place is running, or the place is not as it was left;
    StoreError.
    """
    done = SentData()
    with place.turn():
        before = next((one for one in place.ledger() if one.what is What.DATA), None)
        place.refuse_the_runs_own_folder()
        if not is_shared:
            place.claim(emptied)
        elif before and not before.lost and not emptied and not place.store.list(FOLDER):
            raise OpsctlError(
                f"{place.where} had data sets of {place.name} and has none now: is it mounted? "
                "If it was emptied on purpose, add --emptied"
            )
        noted = read_data_of(place.store, place.name, place.run_id)
        trusted = {one.folder for one in noted.sets} if noted and before and before.counts else set()
        reader, of_run = Reader(place.paths), []
        for one in sets:
            try:
                of_run.append(_send(place, one, reader, trusted, done, report))
            except StoreError:
                raise
            except (OpsctlError, OSError) as error:
                why = file_problem(error) if isinstance(error, OSError) else str(error)
                done.problems.append(f"{one.path} is not there whole: {why}")
        if done.problems:
            return done
        moment = now().replace(microsecond=0)
        note = FarRunData(run=place.name, run_id=place.run_id, sets=tuple(of_run), at=moment, by=account_and_host())
        done.line = msgspec.structs.replace(note.line(place.to), verified_at=moment)
        done.is_new = not (noted and noted.sets == note.sets and before and before.counts and before.of == done.line.of)
        if not done.is_new:
            done.line = before
            return done
        place.write(_note_of_run(place.name, place.run_id), note)
        done.problems += place.record(done.line)
    return done


def _send(
    place: Destination, one: NamedSet, reader: Reader, trusted: set[str], done: SentData, report: Callable[[str], None]
) -> OfRun:
    """Have one set there, each file proven. Raises OpsctlError, OSError, StoreError."""
    sums = {part: reader.sum_of(file) for part, file in one.files.items()}
    digest = _digest(sorted((part, found.bytes, found.xxh64) for part, found in sums.items()))
    there = place.store.list(FOLDER)
    folders = sorted({name.partition("/")[0] for name in there})
    folder = next((name for name in folders if name.endswith(f"-{digest}")), f"{one.name}-{digest}")
    noted = read_note(place.store, f"{FOLDER}/{folder}/{NOTE}", FarSet)
    parts = {part: Part(found.bytes, found.xxh64, one.files[part].name) for part, found in sums.items()}
    far = noted or FarSet(name=one.name, parts=parts, sent_at=now().replace(microsecond=0), by=account_and_host())
    sizes = {f"{folder}/{part.name}": part.bytes for part in far.parts.values()}
    has_sizes = all(name in there and there[name].bytes == size for name, size in sizes.items())
    if noted is None or folder not in trusted or not has_sizes:
        for part, file in one.files.items():
            with opened(file, far.parts[part].expected) as source:
                moved = place.store.put_source(source, f"{FOLDER}/{folder}/{far.parts[part].name}", place.flow)
            if not moved.was_there:
                done.files, done.bytes = done.files + 1, done.bytes + moved.bytes
        if sums != {part: reader.sum_of(file) for part, file in one.files.items()}:
            raise OpsctlError("it changed during the transfer: the next backup sends it again")
        if noted is None:
            place.write(f"{FOLDER}/{folder}/{NOTE}", far)
        report(f"{folder}: {len(far.parts)} files, {bytes_words(sum(sizes.values()))}")
    return OfRun(options=one.options, kind=one.kind, path=one.path, folder=folder, parts=far.parts)


def restore_data(
    store: Store, run: str | None, into: Path | None, flow: Flow, report: Callable[[str], None]
) -> RestoredData:
    """Fetch all sets of a run; into: below this folder, each in a folder of its own. report: gets a line for each.

    A pair's `.idx` comes last: where it is, the pair is whole. Raises OpsctlError where something else is in a place,
    where a disk has no room, for what is not there as it was; StoreError.
    """
    data = choose(store, run)
    places = [(one, one.path if into is None else _below(into, one)) for one in data.sets]
    missing = [_missing(one, path) for one, path in places]  # all, before anything is fetched
    done = []
    for (one, path), parts in zip(places, missing, strict=True):
        _fetch(store, one, path, parts, flow)
        size, there = sum(part.bytes for part in parts.values()), len(one.parts) - len(parts)
        report(f"{path}: {len(parts)} files, {bytes_words(size)}, each as it was sent; {there} were there")
        done.append(
            RestoredDataSet(
                options=list(one.options), was=one.path, path=path, files=len(parts), bytes=size, there=there
            )
        )
    changes = _changes_to_make(done)
    for line in changes:
        report(f"change: {line}")
    return RestoredData(run=data.run, run_id=data.run_id, sets=done, changes=changes)


def _changes_to_make(done: list[RestoredDataSet]) -> list[str]:
    """Return what has to be changed where sets are not where they were, a line each."""
    files = {option: one.path for one in done for option in one.options if option in map(weighted_file_key, SPLITS)}
    lines = []
    for one in done:
        for option in one.options if one.path != one.was else ():
            is_inside = option in files and one.path != files[option]
            where = f"the weighted split file {files[option]}" if is_inside else f"[data] {option}"
            lines.append(f"{where}: {one.was} is {one.path} now")
    return lines


def _below(into: Path, one: OfRun) -> str:
    folder = into.absolute() / one.folder
    return str(folder if one.kind == WHOLE_FOLDER else folder / Path(one.path).name)


def _missing(one: OfRun, path: str) -> dict[str, Part]:
    """Return what is to be fetched. Raises OpsctlError where something else is in the place."""
    missing = {}
    for name, part in one.parts.items():
        file = part_of(one.kind, path, name)
        if not os.path.lexists(file):
            missing[name] = part
            continue
        with opened(file, Expected()) as source:
            is_same = source.bytes == part.bytes and digest_of(source) == part.xxh64
        if not is_same:
            raise OpsctlError(
                f"{file} exists and differs from the backup; opsctl overwrites no file: move it away, or give --into"
            )
    return missing


def _fetch(store: Store, one: OfRun, path: str, parts: dict[str, Part], flow: Flow) -> None:
    by_name = {part_of(one.kind, path, name).name: part for name, part in parts.items()}
    if not by_name:
        return
    folder = part_of(one.kind, path, next(iter(parts))).parent
    folder.mkdir(parents=True, exist_ok=True)
    refuse_without_room(folder, sum(part.bytes for part in parts.values()))

    def source(name: str) -> Source:
        return store.source(f"{FOLDER}/{one.folder}/{by_name[name].name}", by_name[name].expected)

    last = {name for name in by_name if one.kind == PAIR and name.endswith(".idx")}
    for names in ([name for name in by_name if name not in last], sorted(last)):
        fetch(names, source, folder, flow).raise_faults()


def refuse_without_room(folder: Path, size: int) -> None:
    """Raise OpsctlError where the disk of a folder has no room for `size` bytes."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if size > free:
        raise OpsctlError(f"{folder} has {bytes_words(free)} free, and {bytes_words(size)} are to come")


def _note_of_run(run: str, run_id: str) -> str:
    return f"{_RUNS}/{run}-{run_id or 'unnumbered'}.json"


def _digest(value: object) -> str:
    return exchanged.digest_of(json_line(value).encode())
