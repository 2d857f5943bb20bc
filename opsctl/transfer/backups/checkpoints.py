"""Backing up a run's checkpoints: what is here, what a destination wants of it, sending one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import FULL_DISK
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.backups import BackedUp, digest_here, folders_oldest_first, manifest_or_fault, record
from opsctl.run.checkpoints.inventory import latest_iteration, mark_of
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import BackupTable
from opsctl.run.state.run_view import RunView
from opsctl.transfer.backups.checkpoint_forms import Form
from opsctl.transfer.backups.remote_layout import FarCheckpoint, find_all
from opsctl.transfer.backups.schedule import Chosen, Due, Here, choose, never_whole
from opsctl.transfer.backups.send_checkpoint import Destination, claim, ledger, send_checkpoint, turn
from opsctl.transfer.object_store.types import StoreError
from trainer.formats.checkpoint.manifest import iteration_of, tag_of
from trainer.formats.checkpoint.resumable import NO_OPTIMIZER


@dataclass(frozen=True)
class Wish:
    """What a command asks for beyond the policy."""

    named: tuple[int, ...] | None = None  # these instead of what the schedule says
    weights_only: bool = False
    anew: bool = False  # also where the place was emptied


@dataclass
class Sent:
    """What came of it."""

    lines: list[BackedUp] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def here(paths: RunPaths) -> list[Here]:
    """The run's checkpoints, oldest first. Raises OpsctlError where nobody can see them."""
    try:
        return [_seen(paths, folder) for folder in folders_oldest_first(paths.checkpoints)]
    except OpsctlError as error:
        raise OpsctlError(f"nothing is backed up: {error}") from None


def plan(paths: RunPaths, table: BackupTable, to: str, wish: Wish, lines: Collection[BackedUp]) -> Chosen:
    """What the destination should have and has not."""
    return choose(here(paths), lines, table, to, latest_iteration(paths.checkpoints), wish.named, wish.weights_only)


def warnings_of(run: RunView, table: BackupTable) -> tuple[str, ...]:
    """What its owner should know of how [backup] and [retention] go together."""
    file = run.revision.file if run.revision else run.loaded.file if run.loaded else None
    retention = file.retention if file else None
    if retention is None or not never_whole(table, retention.until_backed_up):
        return ()
    until = retention.until_backed_up
    return (
        f"[retention] until_backed_up = {until} keeps whole checkpoints that [backup] full_every = {table.full_every} "
        "never sends: let the first be a multiple of the second",
    )


def ledger_of(place: Destination) -> list[BackedUp]:
    """The run's ledger; what it has lost of this destination is found there again. Raises OpsctlError, StoreError."""
    lines = ledger(place.paths)
    if any(line.to == place.to for line in lines):
        return lines
    found, _ = find_all(place.store)
    return [*lines, *(line_of(one.note, place.to) for one in found)]


def back_up(place: Destination, table: BackupTable, wish: Wish, say: Callable[[str], None]) -> Sent:
    """Send what the destination should have and has not, the newest first. say: told of each that is there.

    What cannot be sent is among the problems, and the others go on. Raises OpsctlError where another backup is at it,
    or the place is another run's; StoreError where the store can do no more.
    """
    done, form = Sent(), Form.TAR if table.tar else Form.FILES
    with turn(place.paths, place.name, place.to):
        claim(place, wish.anew)
        chosen = plan(place.paths, table, place.to, wish, ledger_of(place))
        known = {one.iteration: one.of for one in here(place.paths)} if chosen.due else {}
        for due in reversed(chosen.due):
            try:
                line = send_checkpoint(place, due, known.get(due.iteration, ""), form)
            except StoreError:
                raise
            except OpsctlError as error:
                done.problems.append(f"{tag_of(due.iteration)}: {error}")
                continue
            say(_told(line, due))
            done.lines.append(line)
            done.problems += _put_on_record(place, line)
    return done


def line_of(note: FarCheckpoint, to: str) -> BackedUp:
    """A line for what lies at a destination: not proven there by what its listing says."""
    return BackedUp(
        to=to,
        what=note.what,
        iteration=note.iteration,
        of=note.of,
        form=note.form.value,
        files=note.files,
        bytes=note.bytes,
        sent_at=note.sent_at,
        by=note.by,
    )


def _put_on_record(place: Destination, line: BackedUp) -> list[str]:
    """It is there all the same, and the next backup finds it there."""
    try:
        record(place.paths, [line])
    except OSError as error:
        what = FULL_DISK.get(error.errno or 0) or file_problem(error, place.paths.backups)
        return [f"{tag_of(line.iteration)} is there, but {place.paths.backups} cannot be written: {what}"]
    return []


def _told(line: BackedUp, due: Due) -> str:
    return f"{tag_of(line.iteration)} is there {line.what.words}, {bytes_words(line.bytes)} ({due.reason}, {due.news})"


def _seen(paths: RunPaths, folder: Path) -> Here:
    iteration = iteration_of(folder.name) or 0
    try:
        mark_of(paths.output, folder)
    except OSError as error:  # a link, or somebody else's
        return Here(iteration, problem=str(error.strerror))
    of, found = digest_here(folder), manifest_or_fault(folder)
    if isinstance(found, str) or of is None:
        return Here(iteration, of or "", problem=found if isinstance(found, str) else "no manifest")
    return Here(iteration, of, found.layout.get("optimizer") != NO_OPTIMIZER, found.pinned)
