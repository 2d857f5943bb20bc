"""Sending a run's checkpoints to a destination, the newest first; each is proven there, and its manifest goes last.

Whatever happens to a checkpoint here meanwhile (pruned, moved, saved again), what is there has its manifest only when
all of it is there. Of another save of that iteration the manifest is removed before its first file changes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import read_text
from opsctl.core.files.trusted import opened_folder
from opsctl.core.timestamps import now
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.backups import (
    BackedUp,
    What,
    digest_here,
    folders_oldest_first,
    manifest_or_fault,
    read_backups,
    record,
)
from opsctl.run.checkpoints.inventory import latest_iteration, mark_of
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import BackupTable
from opsctl.run.state.checkpoint_readers import reading
from opsctl.run.state.run_view import RunView
from opsctl.transfer.backups.destination import NOTE, Destination, FarRun, read_note, refuse_another_runs
from opsctl.transfer.backups.remote_layout import (
    FarCheckpoint,
    Form,
    find_all,
    folder_of,
    put_files,
    size_of,
    state_of,
)
from opsctl.transfer.backups.schedule import Chosen, Due, Here, choose, never_whole
from opsctl.transfer.object_store.types import StoreError
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    check_checksums,
    decode_manifest,
    iteration_of,
    tag_of,
)
from trainer.formats.checkpoint.starting import NO_OPTIMIZER, manifest_text, without_optimizer
from trainer.formats.errors import CheckpointError


@dataclass(frozen=True)
class Wish:
    """The wishes of a command beyond the policy."""

    named: tuple[int, ...] | None = None  # these instead of what the schedule says
    weights_only: bool = False
    emptied: bool = False  # also where the place was emptied


@dataclass
class Sent:
    """The result of sending."""

    lines: list[BackedUp] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def here(paths: RunPaths) -> list[Here]:
    """Return the run's checkpoints, oldest first. Raises OpsctlError where they cannot be listed."""
    try:
        return [_seen(paths, folder) for folder in folders_oldest_first(paths.checkpoints)]
    except OpsctlError as error:
        raise OpsctlError(f"nothing is backed up: {error}") from None


def _seen(paths: RunPaths, folder: Path) -> Here:
    iteration = iteration_of(folder.name) or 0
    try:
        mark_of(paths.output, folder)
    except OSError as error:  # a link, or another account's folder
        return Here(iteration, problem=str(error.strerror))
    of, found = digest_here(folder), manifest_or_fault(folder)
    if isinstance(found, str) or of is None:
        return Here(iteration, of or "", problem=found if isinstance(found, str) else "no manifest")
    return Here(iteration, of, found.layout.get("optimizer") != NO_OPTIMIZER, found.pinned)


def plan(place: Destination, table: BackupTable, wish: Wish, found: Collection[Here]) -> Chosen:
    """Return what the destination should have of `found` and has not.

    What the ledger has lost of this destination is found there again. Raises OpsctlError, StoreError.
    """
    lines = place.ledger()
    if not any(line.to == place.to for line in lines):
        lines += [one.note.line(place.to) for one in find_all(place.store)[0]]
    latest = latest_iteration(place.paths.checkpoints)
    return choose(list(found), lines, table, place.to, latest, wish.named, wish.weights_only)


def warnings_of(run: RunView, table: BackupTable) -> tuple[str, ...]:
    """Return a warning where [retention] waits for backups that [backup] never makes."""
    file = run.revision.file if run.revision else run.loaded.file if run.loaded else None
    retention = file.retention if file else None
    if retention is None or not never_whole(table, retention.until_backed_up):
        return ()
    until = retention.until_backed_up
    return (
        f"[retention] until_backed_up = {until} keeps whole checkpoints that [backup] full_every = {table.full_every} "
        "never sends: let the first be a multiple of the second",
    )


def back_up(place: Destination, table: BackupTable, wish: Wish, report: Callable[[str], None]) -> Sent:
    """Send what the destination should have and has not, the newest first. report: gets a line for each.

    What cannot be sent is among the problems, and the others are sent. Raises OpsctlError where another backup is
    running, or the place is another run's; StoreError where the store can do no more.
    """
    done, form = Sent(), Form.TAR if table.tar else Form.FILES
    with place.turn():
        place.claim(wish.emptied)
        found = here(place.paths)
        known = {one.iteration: one.of for one in found}
        for due in reversed(plan(place, table, wish, found).due):
            tag = tag_of(due.iteration)
            try:
                line = _send_checkpoint(place, due, known.get(due.iteration, ""), form)
            except StoreError:
                raise
            except OpsctlError as error:
                done.problems.append(f"{tag}: {error}")
                continue
            report(f"{tag} is there {line.what.words}, {bytes_words(line.bytes)} ({due.reason}, {due.news})")
            done.lines.append(line)
            done.problems += place.record(line)
    return done


def _send_checkpoint(place: Destination, due: Due, of: str, form: Form) -> BackedUp:
    """Send one, marked as being read. of: checksum of the manifest that it was chosen by.

    Raises OpsctlError, with the reason, where it is not there whole afterwards.
    """
    folder = place.paths.checkpoints / tag_of(due.iteration)
    try:
        with (
            reading(place.paths, due.iteration, f"backup to {place.store.where}"),
            opened_folder(place.paths.output, folder) as (held, _),
        ):
            return _send(place, due, held, _manifest_here(place.paths, due.iteration, of), form)
    except CheckpointError as error:
        raise OpsctlError(f"{folder.name} is not sent: {error}") from None
    except OSError as error:
        raise OpsctlError(f"{folder.name} is not sent: {file_problem(error, folder)}") from None


def _send(place: Destination, due: Due, held: int, data: bytes, form: Form) -> BackedUp:
    whole = decode_manifest(data, f"{tag_of(due.iteration)}/{MANIFEST}")
    manifest = whole if due.what is What.FULL else without_optimizer(whole)
    text = data if due.what is What.FULL else manifest_text(manifest)
    prefix = folder_of(due.what, due.iteration)
    _make_way(place, due, prefix, manifest, text)
    note = FarCheckpoint(
        run=place.name,
        run_id=place.run_id,
        iteration=due.iteration,
        what=due.what,
        of=digest_of(data),
        files=len(manifest.files),
        bytes=size_of(manifest.files),
        left_out=tuple(sorted(whole.files.keys() - manifest.files.keys())),
        form=form,
        sent_at=now().replace(microsecond=0),
        by=account_and_host(),
    )
    place.write(f"{prefix}/{NOTE}", note)
    put_files(place.store, held, manifest, prefix, form, place.flow)
    _manifest_here(place.paths, due.iteration, note.of)
    place.write(f"{prefix}/{MANIFEST}", text)
    proof = state_of(place.store.list(prefix), manifest)
    return replace(note.line(place.to), verified_at=now().replace(microsecond=0), proof=proof)


def _make_way(place: Destination, due: Due, prefix: str, manifest: Manifest, text: bytes) -> None:
    """Remove another save of the iteration that is there: its manifest first.

    Raises OpsctlError where it is another run's, CheckpointError where what is to take its place is damaged here.
    """
    note = read_note(place.store, f"{prefix}/{NOTE}", FarCheckpoint)
    if note is not None and note.run:
        owner = FarRun(run=note.run, run_id=note.run_id)
        refuse_another_runs(owner, place.name, place.run_id, f"{place.store.where}/{prefix}")
    manifest_there = place.store.read_if_there(f"{prefix}/{MANIFEST}")
    if manifest_there is None or manifest_there == text:
        return  # each file that is there is proven before it counts, or sent again
    check_checksums(place.paths.checkpoints / tag_of(due.iteration), manifest)  # the one there may be the better one
    if _may_count(place, due):
        gone = BackedUp(to=place.to, what=due.what, iteration=due.iteration, lost="another one takes its place")
        record(place.paths, [gone])
    place.store.remove([MANIFEST], prefix)
    place.store.remove([name for name in place.store.list(prefix) if name != NOTE], prefix)


def _may_count(place: Destination, due: Due) -> bool:
    try:
        lines = read_backups(place.paths)
    except OSError:
        return True
    return any(line.key == (place.to, due.iteration, due.what) and line.counts for line in lines)


def _manifest_here(paths: RunPaths, iteration: int, of: str) -> bytes:
    """Return the manifest as it is now. Raises OSError, OpsctlError where it has not the checksum `of`."""
    path = paths.checkpoints / tag_of(iteration) / MANIFEST
    text = read_text(paths.output, path)
    if text is None:
        raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile", str(path))
    if digest_of(text.encode()) != of:
        raise OpsctlError(f"{tag_of(iteration)} was saved again meanwhile: the next backup sends that")
    return text.encode()
