"""Restore a whole run from a destination to a new folder: records, logs, run file, its newest checkpoint.

All of it is assembled under a temporary name, which a later try continues, and renamed when complete. The rules of
`run.state.identity` decide whether it is then the same run, moved, or another one; if they cannot, the user does.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, RunFileError, UsageError
from opsctl.core.files.state_files import make_folder, read_state, read_text, write_atomically, write_state
from opsctl.core.timestamps import now
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.backups import What, digest_here
from opsctl.run.checkpoints.rollbacks import append_rollback
from opsctl.run.config.load import load_run_file
from opsctl.run.config.locate import RUN_FILE_NAME, known_runs, remember_run
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import identity
from opsctl.run.state.identity import Standing
from opsctl.transfer.backups import run_files
from opsctl.transfer.backups.destination import read_run
from opsctl.transfer.backups.json_output import RestoredRun
from opsctl.transfer.backups.remote_layout import Found, find_all
from opsctl.transfer.backups.restore_checkpoint import Chosen, alone_in, choose, restore_to_folder
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.folder import fetch
from opsctl.transfer.object_store.sources import Source
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import Expected
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.history import Rollback
from trainer.formats.checkpoint.manifest import (
    LATEST,
    WAY_OUT,
    check_checksums,
    check_files,
    latest_folder,
    read_manifest,
    tag_of,
)
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment

SAME, COPY = "same", "copy"
_OUTPUT = "output"


@dataclass(frozen=True)
class Asked:
    """The parts of a run to restore."""

    step: int | None = None  # None: the newest whole checkpoint
    weights_only: bool = False
    with_checkpoint: bool = True
    stands_as: str | None = None  # SAME, COPY; None: as the rules tell


class RestoredNote(msgspec.Struct, frozen=True, kw_only=True):
    """`.opsctl/restored.json`: the restore that made a run's folder. It is there before the folder has its name."""

    schema_version: int = 1
    source: str = msgspec.field(name="from")
    asked: Asked
    name: str
    snapshot: int | None = msgspec.field(name="look")  # number of the index of its records
    files: int
    bytes: int
    checkpoint: int | None
    standing: str  # a clause for people
    is_copy: bool  # of a run that may continue where it is
    at: Moment
    by: str


def restore_run(store: Store, folder: Path, asked: Asked, flow: Flow, report: Callable[[str], None]) -> RestoredRun:
    """Make the run `folder` from the destination. report: gets a line for each finished part.

    Raises OpsctlError if the place is taken, the destination has no backup, a file differs, or it is unknown whether
    the original still exists (`asked.stands_as` decides then); StoreError.
    """
    far_run, snapshot = read_run(store), run_files.newest_snapshot(store, run_files.numbers_there(store))
    if far_run is None:
        raise OpsctlError(f"{store.where} has no {run_files.FOLDER} and no backup.json: no run is backed up there")
    if (note := _finished(store, folder, asked)) is not None:
        return _restored(folder, note, (), True, report)
    chosen = _checkpoint(store, asked) if asked.with_checkpoint else None
    with _beside(folder, digest_of(f"{store.where}\0{far_run.run_id}".encode())) as made:
        paths = RunPaths(made / _OUTPUT)
        make_folder(made, paths.output)
        if snapshot is not None:
            _fetch_rest(store, snapshot, made, flow)
            report(f"records and logs are there: {len(snapshot.files)} files of {snapshot.at}")
        standing, is_copy = _settled(paths, folder / _OUTPUT, asked.stands_as)
        if chosen is not None:
            _fetch_checkpoint(store, chosen, paths, flow)
            report(f"{tag_of(chosen.manifest.iteration)} is there, {bytes_words(chosen.bytes)}")
        warnings = _fix_run_file(made, folder)
        note = RestoredNote(
            source=store.where,
            asked=asked,
            name=far_run.run,
            snapshot=snapshot.number if snapshot else None,
            files=len(snapshot.files) if snapshot else 0,
            bytes=(sum(file.bytes for file in snapshot.files.values()) if snapshot else 0)
            + (chosen.bytes if chosen else 0),
            checkpoint=chosen.manifest.iteration if chosen else None,
            standing=standing,
            is_copy=is_copy,
            at=now().replace(microsecond=0),
            by=account_and_host(),
        )
        make_folder(paths.output, paths.state)
        write_state(paths.output, paths.restored, note)
        if os.path.lexists(folder):
            raise OpsctlError(f"{folder} exists by now, and opsctl overwrites nothing; the fetched files are in {made}")
        made.rename(folder)
    return _restored(folder, note, warnings, False, report)


def _restored(
    folder: Path, note: RestoredNote, warnings: Sequence[str], was_there: bool, report: Callable[[str], None]
) -> RestoredRun:
    """Let `--run NAME` find the run here, unless the name is that of an original that exists, and report the result."""
    for warning in warnings:
        report(f"warning: {warning}")
    run_file, known = folder / RUN_FILE_NAME, known_runs().get(note.name)
    if run_file.is_file() and note.is_copy and known and Path(known).is_file():
        report(f"--run {note.name} still means {known}, also for the scheduler: give the copy another [run] name")
    elif run_file.is_file():
        remember_run(note.name, run_file)
    checkpoint = "no checkpoint" if note.checkpoint is None else f"{tag_of(note.checkpoint)}, the latest"
    state = "complete already, nothing was fetched; " if was_there else ""
    report(f"{folder}: {state}{note.name}, {note.standing}; {note.files} files of records and logs, {checkpoint}")
    return RestoredRun(
        folder=str(folder),
        run=note.name,
        files=note.files,
        bytes=note.bytes,
        checkpoint=note.checkpoint,
        standing=note.standing,
        warnings=list(warnings),
        was_there=was_there,
    )


def _finished(store: Store, folder: Path, asked: Asked) -> RestoredNote | None:
    """Return the note of a finished restore of the same to `folder`; None without.

    Every byte of the latest checkpoint, and of the restored one if it is still there, is read. Raises OpsctlError if
    the run has lost its checkpoints since, or one is damaged.
    """
    paths = RunPaths(folder / _OUTPUT)
    note = read_state(paths.output, paths.restored, RestoredNote) if folder.is_dir() else None
    if note is None or (note.source, note.asked) != (store.where, asked):
        return None
    if note.checkpoint is None:
        return note
    try:
        latest, restored = latest_folder(paths.checkpoints), paths.checkpoints / tag_of(note.checkpoint)
        if latest is None:
            raise CheckpointError(f"{paths.checkpoints} has no checkpoint now")
        for one in {latest, restored} if restored.is_dir() else {latest}:
            manifest = read_manifest(one)
            check_files(one, manifest)
            check_checksums(one, manifest)
    except (CheckpointError, OSError) as error:
        into = f" --into {_OUTPUT}/{paths.checkpoints.name}" * note.is_copy  # of another run for the destination
        raise OpsctlError(
            f"{folder} was restored, but {str(error).partition(WAY_OUT)[0]}; move a damaged folder away, then in "
            f"{folder}, opsctl checkpoints restore --from {store.where} --step {note.checkpoint}{into} "
            "restores the checkpoint"
        ) from None
    return note


def _checkpoint(store: Store, asked: Asked) -> Chosen | None:
    if asked.step is not None:
        return choose(store, asked.step, asked.weights_only)
    found, _ = find_all(store)
    fitting = [one for one in found if asked.weights_only or one.note.what is What.FULL]
    # One with NaN or infinity only where there is no other: a training does not recover from it.
    newest: Found | None = max(
        fitting, key=lambda one: (one.manifest.not_finite is None, one.note.iteration), default=None
    )
    return None if newest is None else choose(store, newest.note.iteration, asked.weights_only)


@contextlib.contextmanager
def _beside(folder: Path, source: str) -> Iterator[Path]:
    """Yield the folder in which it is put together, for one restore of a source at a time.

    Raises OpsctlError where something is in the place.
    """
    if os.path.lexists(folder):
        raise OpsctlError(f"{folder} is there, and nothing is overwritten: give a folder that is not there yet")
    if not folder.parent.is_dir():
        raise UsageError(f"no folder {str(folder.parent)!r} to make the run in: make it first")
    made = folder.with_name(f".{folder.name}.restoring-{source}")
    made.mkdir(mode=0o755, exist_ok=True)
    with alone_in(made, f"another restore to {folder} is under way"):
        yield made


def _fetch_rest(store: Store, snapshot: run_files.Snapshot, made: Path, flow: Flow) -> None:
    """Fetch every file of a snapshot from where it is stored; the run file gets the name that it has here."""
    run_file, files = f"run/{Path(snapshot.run_file).name}", {}
    for name, file in snapshot.files.items():
        number, _, there = file.at.partition("/")
        if there != name or not number.isdigit():
            raise OpsctlError(
                f"snapshot {snapshot.number} in {store.where} names {name!a} as {file.at!a}, which cannot be"
            )
        if name.startswith(f"{_OUTPUT}/") or name == run_file:
            files[RUN_FILE_NAME if name == run_file else name] = file

    def opened(name: str) -> Source:
        file = files[name]
        return store.source(f"{run_files.FOLDER}/{file.at}", Expected(file.bytes, file.xxh64))

    fetch(files, opened, made, flow).raise_faults()


def _settled(paths: RunPaths, output: Path, stands_as: str | None) -> tuple[str, bool]:
    """Return a clause about the run's identity, and whether it is a copy. Raises OpsctlError if this is unknown."""
    place = identity.stands_for(paths, output)
    if place.standing is Standing.UNBOUND:
        return "a run that was never submitted", False
    standing = place.standing
    if stands_as is None and standing is Standing.UNCLEAR:
        raise OpsctlError(
            f"this host cannot see if {place.was} still exists: give --as same if it is gone, or --as copy if this is "
            "another run. Fetched files are kept for the next try"
        )
    if stands_as == SAME and standing is Standing.COPY:
        raise OpsctlError(f"{place.was} still exists: give --as copy")
    if stands_as == COPY or standing is Standing.COPY:
        identity.set_the_originals_aside(paths)
        return f"a separate run, a copy of {place.was}", True
    identity.take_over(paths, output)
    if standing is Standing.SAME:
        return "the same run in its place", False
    return f"the same run, which was {place.was}", False


def _fetch_checkpoint(store: Store, chosen: Chosen, paths: RunPaths, flow: Flow) -> None:
    make_folder(paths.output, paths.checkpoints)
    tag = tag_of(chosen.manifest.iteration)
    there = paths.checkpoints / tag
    if there.is_dir() and digest_here(there) != digest_of(chosen.text):
        shutil.rmtree(there)  # of an earlier try that was asked for another one
    if not there.is_dir():
        restore_to_folder(store, chosen, paths.checkpoints, flow)
    why = f"restored from {store.where}"
    append_rollback(paths, Rollback(chosen.manifest.iteration, None, account_and_host(), now(), why))
    write_atomically(paths.output, paths.checkpoints / LATEST, tag)


def _fix_run_file(made: Path, folder: Path) -> tuple[str, ...]:
    """Set [run] output to the folder next to the run file, if it is another; return what the user has to know."""
    path, final = made / RUN_FILE_NAME, folder / RUN_FILE_NAME
    if not path.is_file():
        return ('no run file was backed up: write one, with [run] output = "output"',)
    try:
        if load_run_file(path).paths.output == made / _OUTPUT:
            return ()
        write_atomically(made, path, with_output(read_text(made, path) or "", _OUTPUT))
        if load_run_file(path).paths.output == made / _OUTPUT:
            return (f'[run] output in {final} is "{_OUTPUT}" now: opsctl revise publishes that',)
    except (RunFileError, OSError) as error:
        return (f"{final}: {error}",)
    return (f"correct [run] output in {final}: it has to be {folder / _OUTPUT}",)


def with_output(text: str, output: str) -> str:
    """Return the run file's text with another [run] output; everything else, comments too, stays."""
    head, name, rest = text.partition("[run]")
    at = re.search(r"^\[", rest, re.MULTILINE)
    table, more = (rest[: at.start()], rest[at.start() :]) if at else (rest, "")
    line = f'output = "{output}"'
    changed, count = re.subn(r"^[ \t]*output[ \t]*=.*$", line, table, count=1, flags=re.MULTILINE)
    return head + name + (changed if count else f"\n{line}{table}") + more
