"""Sending a run's data sets: each content once, its note last, whoever else sends the same to the same place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.timestamps import now
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.backups import BackedUp, What, record
from opsctl.run.state.identity import read_run_id
from opsctl.transfer.backups.data_remote import (
    FOLDER,
    NOTE,
    FarRunData,
    FarSet,
    OfRun,
    Part,
    digest_of_parts,
    has_its_sizes,
    name_of_run,
    read_data_of,
    read_set,
)
from opsctl.transfer.backups.data_sets import NamedSet, Reader, Sum, opened
from opsctl.transfer.backups.send_checkpoint import Destination, claim, ledger, refuse_the_runs_own_folder, turn
from opsctl.transfer.object_store.types import Expected, StoreError
from trainer.formats.json_text import json_file_text


@dataclass
class SentData:
    """What came of it."""

    line: BackedUp | None = None  # None: not all of it is there
    is_new: bool = False  # whether anything had to be sent or told
    files: int = 0  # sent
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


def back_up_data(
    place: Destination, sets: list[NamedSet], say: Callable[[str], None], is_shared: bool = False, anew: bool = False
) -> SentData:
    """Bring all `sets` there that are not there yet. is_shared: the place is no run's own. say: told of each.

    Raises OpsctlError where another backup of the run to that place is under way, or the place is not as it was left;
    StoreError.
    """
    done = SentData()
    with turn(place.paths, place.name, place.to):
        _claim(place, is_shared, anew)
        before = next((one for one in ledger(place.paths) if (one.to, one.what) == (place.to, What.DATA)), None)
        noted = read_data_of(place.store, place.name, read_run_id(place.paths) or "")
        trusted = {one.folder for one in noted.sets} if noted and before and before.counts else set()
        reader, of_run = Reader(place.paths), []
        for one in sets:
            try:
                of_run.append(_send(place, one, reader, trusted, done, say))
            except StoreError:
                raise
            except (OpsctlError, OSError) as error:
                why = file_problem(error) if isinstance(error, OSError) else str(error)
                done.problems.append(f"{one.path} is not there whole: {why}")
        if not done.problems:
            _finish(place, tuple(of_run), noted, before, done)
    return done


def _claim(place: Destination, is_shared: bool, anew: bool) -> None:
    if not is_shared:
        return claim(place, anew)
    refuse_the_runs_own_folder(place)
    knows = any((one.to, one.what) == (place.to, What.DATA) and not one.lost for one in ledger(place.paths))
    if knows and not anew and not place.store.list(FOLDER):
        raise OpsctlError(
            f"{place.store.where} had data sets of {place.name} and has none now: is it mounted? "
            "Where it was emptied --anew begins there again"
        )
    return None


def _send(
    place: Destination, one: NamedSet, reader: Reader, trusted: set[str], done: SentData, say: Callable[[str], None]
) -> OfRun:
    """Have one set there. Raises OpsctlError, OSError, StoreError."""
    sums = {part: reader.sum_of(file) for part, file in one.files.items()}
    digest = digest_of_parts({part: (found.bytes, found.xxh64) for part, found in sums.items()})
    there = place.store.list(FOLDER)
    folders = {name.partition("/")[0] for name in there}
    folder = next((name for name in sorted(folders) if name.endswith(f"-{digest}")), f"{one.name}-{digest}")
    far = read_set(place.store, folder)
    is_proven = far is not None and folder in trusted and has_its_sizes(far, folder, there)
    if far is None or not (is_proven or _is_whole(place, folder, far)):
        parts = {
            part: Part(found.bytes, found.xxh64, one.here(part).name if part else one.name)
            for part, found in sums.items()
        }
        far = FarSet(name=one.name, parts=parts, sent_at=now().replace(microsecond=0), by=account_and_host())
        _send_parts(place, one, sums, folder, far, done)
        if any(reader.has_changed(file, sums[part]) for part, file in one.files.items()):
            raise OpsctlError("it changed while it was sent: the next backup sends what it is then")
        place.say(f"{FOLDER}/{folder}/{NOTE}", json_file_text(far).encode())
        say(f"{folder}: {len(far.parts)} files, {bytes_words(far.bytes)}")
    return OfRun(options=one.options, kind=one.kind, path=one.path, folder=folder, parts=far.parts)


def _is_whole(place: Destination, folder: str, far: FarSet) -> bool:
    """Whether its bytes are there: each is read, for a store's word is no proof. What is damaged is gone then."""
    files = {part.name: Expected(part.bytes, part.xxh64) for part in far.parts.values()}
    outcome = place.store.check(files, f"{FOLDER}/{folder}", flow=place.flow)
    if outcome.faults:
        place.store.remove([NOTE], f"{FOLDER}/{folder}")  # nothing of it is whole from here on
        place.store.remove(list(outcome.faults), f"{FOLDER}/{folder}")
    return not outcome.faults


def _send_parts(
    place: Destination, one: NamedSet, sums: Mapping[str, Sum], folder: str, far: FarSet, done: SentData
) -> None:
    for part, file in one.files.items():
        with opened(file, Expected(sums[part].bytes, sums[part].xxh64)) as source:
            moved = place.store.put_source(source, f"{FOLDER}/{folder}/{far.parts[part].name}", place.flow)
        if not moved.was_there:
            done.files, done.bytes = done.files + 1, done.bytes + moved.bytes


def _finish(
    place: Destination, sets: tuple[OfRun, ...], noted: FarRunData | None, before: BackedUp | None, done: SentData
) -> None:
    """Have the destination say which sets are the run's, and put that on record."""
    moment = now().replace(microsecond=0)
    run_id = read_run_id(place.paths) or ""
    note = FarRunData(run=place.name, run_id=run_id, sets=sets, at=moment, by=account_and_host())
    if noted is not None and noted.sets == sets and before is not None and before.counts and before.of == note.of:
        done.line = before
        return
    place.say(name_of_run(place.name, run_id), json_file_text(note).encode())
    done.is_new = True
    done.line = BackedUp(
        to=place.to,
        what=What.DATA,
        of=note.of,
        files=len(note.files),
        bytes=sum(part.bytes for part in note.files.values()),
        sent_at=moment,
        by=note.by,
        verified_at=moment,
    )
    try:
        record(place.paths, [done.line])
    except OSError as error:
        done.problems.append(f"it is there, but not on record: {file_problem(error, Path(place.paths.backups))}")
