"""Roll back to an earlier checkpoint: later ones are set aside, nothing is deleted, and it can be undone.

One record (`checkpoints.set_aside`) is written first. Then files are renamed, which can be repeated: after an
interrupted rollback the next one continues in the same direction.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import fsync_folder, locked, make_folder, write_atomically
from opsctl.core.files.trusted import Untrusted, opened_folder
from opsctl.core.timestamps import now
from opsctl.run.checkpoints import rollbacks
from opsctl.run.checkpoints.inventory import last_checkpoint, latest_iteration, mark_of
from opsctl.run.checkpoints.rollbacks import (
    MovedCheckpoint,
    MovedEvents,
    SetAside,
    append_rollback,
    complete_checkpoint,
    read_rollbacks,
    refuse_during_training,
    sole_writer,
)
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import LOCK_WAIT_S, way_in
from opsctl.run.state.identity import settle_identity
from trainer.formats.checkpoint.history import Rollback
from trainer.formats.checkpoint.manifest import LATEST, checkpoint_folders, iteration_of, read_manifest, tag_of
from trainer.formats.errors import CheckpointError

_CHECKPOINTS, _CURVES, _CUT = "checkpoints", "tensorboard", "cut"


@dataclass(frozen=True)
class Point:
    """The progress of a checkpoint's training, in the units of the curves."""

    iteration: int
    samples: int
    tokens: int


@dataclass(frozen=True)
class EventFile:
    """An event file, by its name in the folder of the curves."""

    name: str
    before: int  # points up to the checkpoint
    beyond: int  # points after it


#: Reads the curves up to a point, and with a folder writes there what comes before in files that go beyond.
ReadCurves = Callable[[Path, Point, Path | None], Sequence[EventFile]]


@dataclass(frozen=True)
class RolledBack:
    """The effect of a rollback or its undo, or with a dry run the planned effect."""

    to: int  # iteration of the latest now
    before: int | None
    checkpoints: tuple[int, ...]  # set aside, or brought back
    events: tuple[str, ...]
    number: int | None  # of the rollback; None where there was nothing to do
    folder: Path | None
    finished: tuple[str, ...] = ()  # what another process had left in the middle
    warning: str = ""

    def summary(self, is_undo: bool, dry_run: bool) -> str:
        """Return what was done, or would be, in a line for people."""
        if not self.checkpoints and not self.events and self.before == self.to:
            return f"global_step{self.to} is the latest already, and nothing is later"
        was = "is not known" if self.before is None else f"was global_step{self.before}"
        moved = f"{len(self.checkpoints)} checkpoints and {len(self.events)} event files"
        aside = "brought back" if is_undo else "set aside"
        where = f" in {self.folder}" if self.folder and not is_undo else ""
        verb = "would be" if dry_run else "is now"
        hint = "" if is_undo or self.number is None or dry_run else f"; rollback --undo {self.number} brings them back"
        return f"the latest {was}, and {verb} global_step{self.to}; {moved} {aside}{where}{hint}"


def rollback(
    paths: RunPaths, name: str, to: int, why: str, read_curves: ReadCurves, dry_run: bool = False
) -> RolledBack:
    """Roll run `name` back to the checkpoint of iteration `to`, as if it had never trained further.

    Raises OpsctlError while a job trains, for an incomplete checkpoint, and if it is impossible.
    """
    if dry_run:
        planned = _planned(paths, to, why, read_curves, None, 0)
        refuse_during_training(paths, name)
        return _told(planned, None)
    with _explained(paths, f"roll back {name}"), _locked(paths, f"roll back {name}") as warning:
        finished = _finish(paths, name)
        number = 1 + max((number for number, _ in rollbacks.numbered_folders(paths)), default=0)
        folder = rollbacks.folder_of(paths, number)
        refuse_during_training(paths, name, is_locked=True)
        planned = _planned(paths, to, why, read_curves, folder, number)
        if planned.before == to and not planned.checkpoints and not planned.events:
            return RolledBack(to, planned.before, (), (), None, None, finished, warning)
        make_folder(paths.output, folder)
        rollbacks.write_set_aside(paths, planned)
        try:
            _forward(paths, name, planned)
        except OpsctlError:  # a job trains after all: then nothing has been moved, and nothing is to be finished
            rollbacks.write_set_aside(paths, replace(planned, state=rollbacks.UNDONE))
            raise
        return dataclasses.replace(_told(planned, folder), finished=finished, warning=warning)


def undo(paths: RunPaths, name: str, number: int | None, read_curves: ReadCurves, dry_run: bool = False) -> RolledBack:
    """Bring back what rollback `number` (None: the newest that is not undone) has set aside.

    Raises OpsctlError while a job trains, and where the training has gone on since: what is new would be mixed with
    what comes back.
    """
    if dry_run:
        chosen = _to_undo(paths, number)
        refuse_during_training(paths, name)
        _refuse_new_branch(paths, chosen, read_curves)
        return _brought_back(paths, chosen)
    with _explained(paths, f"undo a rollback of {name}"), _locked(paths, f"undo a rollback of {name}") as warning:
        finished = _finish(paths, name)
        chosen = _to_undo(paths, number)
        refuse_during_training(paths, name, is_locked=True)
        _refuse_new_branch(paths, chosen, read_curves)
        chosen = replace(chosen, state=rollbacks.UNDOING)
        rollbacks.write_set_aside(paths, chosen)
        _backward(paths, name, chosen)
        return dataclasses.replace(_brought_back(paths, chosen), finished=finished, warning=warning)


def _planned(paths: RunPaths, to: int, why: str, read_curves: ReadCurves, folder: Path | None, number: int) -> SetAside:
    """Return the record of a rollback. With a folder, the curves up to `to` are written there."""
    root = paths.checkpoints
    try:
        manifest = read_manifest(complete_checkpoint(root, to))
        later = [path for path in checkpoint_folders(root) if (iteration_of(path.name) or 0) > to]
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    point = Point(to, manifest.consumed_train_samples, manifest.consumed_train_tokens)
    curves = read_curves(paths.tensorboard, point, folder / _CUT if folder else None)
    return SetAside(
        number=number,
        state=rollbacks.BEGUN,
        to=to,
        before=latest_iteration(root),
        by=account_and_host(),
        at=now().replace(microsecond=0),
        why=why,
        checkpoints=tuple(
            MovedCheckpoint(iteration_of(path.name) or 0, mark_of(paths.output, path)) for path in reversed(later)
        ),
        events=tuple(MovedEvents(one.name, one.before > 0) for one in curves if one.beyond),
    )


def _forward(paths: RunPaths, name: str, one: SetAside) -> None:
    """Set aside what the record names and is still in place, then record that it is done."""
    folder = rollbacks.folder_of(paths, one.number)
    with sole_writer(paths, name, "rollback"):
        if all(line.set_aside != one.number for line in read_rollbacks(paths)):
            if _has_gone_on(paths, one):
                rollbacks.write_set_aside(paths, replace(one, state=rollbacks.UNDONE))
                return
            append_rollback(paths, Rollback(one.to, one.before, one.by, one.at, one.why, one.number))
        if _latest_mark(paths) in (None, *(moved.mark for moved in one.checkpoints)):
            write_atomically(paths.output, paths.checkpoints / LATEST, tag_of(one.to))
        kept = _latest_mark(paths)
        for moved in one.checkpoints:
            if moved.mark != kept:
                tag = tag_of(moved.iteration)
                _move(paths, paths.checkpoints / tag, folder / _CHECKPOINTS / tag, moved.mark)
        for events in one.events:
            own, aside, cut = (where / events.name for where in (paths.tensorboard, folder / _CURVES, folder / _CUT))
            if not _is_there(paths, aside):
                _move(paths, own, aside)
            if events.is_cut:
                _move(paths, cut, own)
        rollbacks.write_set_aside(paths, replace(one, state=rollbacks.DONE))


def _backward(paths: RunPaths, name: str, one: SetAside) -> None:
    """Bring back what the record names and is still set aside, then record that it is undone."""
    folder = rollbacks.folder_of(paths, one.number)
    with sole_writer(paths, name, "rollback"):
        for moved in one.checkpoints:
            tag = tag_of(moved.iteration)
            _move(paths, folder / _CHECKPOINTS / tag, paths.checkpoints / tag, moved.mark)
        for events in one.events:
            _move(paths, folder / _CURVES / events.name, paths.tensorboard / events.name)
        if one.before is not None and one.before != one.to and _is_there(paths, paths.checkpoints / tag_of(one.before)):
            why = f"undoes rollback {one.number}"
            append_rollback(paths, Rollback(one.before, one.to, account_and_host(), now().replace(microsecond=0), why))
            write_atomically(paths.output, paths.checkpoints / LATEST, tag_of(one.before))
        rollbacks.write_set_aside(paths, replace(one, state=rollbacks.UNDONE))


def _finish(paths: RunPaths, name: str) -> tuple[str, ...]:
    """Complete what another process was cut off in, in the same direction; return what was done."""
    told = []
    known = rollbacks.read_set_aside(paths)
    for one in known:
        if one.state == rollbacks.BEGUN:
            _forward(paths, name, one)
            told.append(f"the rollback to iteration {one.to} that {one.by} had begun is finished")
        elif one.state == rollbacks.UNDOING:
            _backward(paths, name, one)
            told.append(f"undoing the rollback to iteration {one.to} is finished")
    for number, folder in rollbacks.numbered_folders(paths):
        if number not in {one.number for one in known} and not _is_there(paths, folder / _CHECKPOINTS):
            with opened_folder(paths.output, folder.parent) as (above, _):  # curves that no record names
                shutil.rmtree(folder.name, dir_fd=above)
    return tuple(told)


def _to_undo(paths: RunPaths, number: int | None) -> SetAside:
    done = [one for one in rollbacks.read_set_aside(paths) if one.state == rollbacks.DONE]
    chosen = next((one for one in reversed(done) if number in (None, one.number)), None)
    if chosen is None:
        there = ", ".join(f"{one.number} (to {one.to})" for one in done)
        raise OpsctlError(f"no rollback{'' if number is None else f' {number}'} to undo; there are: {there or 'none'}")
    return chosen


def _refuse_new_branch(paths: RunPaths, one: SetAside, read_curves: ReadCurves) -> None:
    try:
        manifest = read_manifest(complete_checkpoint(paths.checkpoints, one.to))
        there = [path.name for path in checkpoint_folders(paths.checkpoints) if (iteration_of(path.name) or 0) > one.to]
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    point = Point(one.to, manifest.consumed_train_samples, manifest.consumed_train_tokens)
    there += [found.name for found in read_curves(paths.tensorboard, point, None) if found.beyond]
    if there:
        raise OpsctlError(
            f"the training has continued, and {there[0]} is newer than that rollback: opsctl checkpoints rollback --to "
            f"{one.to} sets it aside, then rollback --undo {one.number} restores the earlier checkpoints"
        )


def _told(one: SetAside, folder: Path | None) -> RolledBack:
    iterations, names = (moved.iteration for moved in one.checkpoints), (moved.name for moved in one.events)
    return RolledBack(one.to, one.before, tuple(iterations), tuple(names), one.number, folder)


def _brought_back(paths: RunPaths, one: SetAside) -> RolledBack:
    told = _told(one, rollbacks.folder_of(paths, one.number))
    return RolledBack(
        one.to if one.before is None else one.before, one.to, told.checkpoints, told.events, one.number, told.folder
    )


@contextlib.contextmanager
def _locked(paths: RunPaths, what: str) -> Iterator[str]:
    """Hold the run's lock; yield a warning about the folder."""
    make_folder(paths.output, paths.state)
    with locked(paths.output, paths.lock, LOCK_WAIT_S, what):
        yield settle_identity(paths)


@contextlib.contextmanager
def _explained(paths: RunPaths, what: str) -> Iterator[None]:
    """Turn an OSError into one line that names the remedy."""
    try:
        yield
    except OSError as error:
        said = file_problem(error, paths.output)
        if isinstance(error, PermissionError) and not isinstance(error, Untrusted):
            said = f"{said}; {way_in(paths.output)}"
        raise OpsctlError(f"cannot {what}: {said}; to continue, repeat the command") from None


def _has_gone_on(paths: RunPaths, one: SetAside) -> bool:
    """Return whether the training continued from the old latest before this rollback changed it."""
    found = last_checkpoint(paths.checkpoints)
    return one.before is not None and found is not None and found.iteration not in (one.before, one.to)


def _latest_mark(paths: RunPaths) -> str | None:
    iteration = latest_iteration(paths.checkpoints)
    return None if iteration is None else mark_of(paths.output, paths.checkpoints / tag_of(iteration))


def _is_there(paths: RunPaths, path: Path) -> bool:
    try:
        with opened_folder(paths.output, path.parent) as (above, _):
            os.stat(path.name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _move(paths: RunPaths, source: Path, target: Path, mark: str | None = None) -> None:
    """Rename a file that is still there and, with a mark, still the same. Raises OSError."""
    if not _is_there(paths, source) or (mark is not None and mark_of(paths.output, source) != mark):
        return
    with (
        opened_folder(paths.output, source.parent) as (old, _),
        opened_folder(paths.output, target.parent, make=True) as (new, _),
    ):
        os.rename(source.name, target.name, src_dir_fd=old, dst_dir_fd=new)
    fsync_folder(paths.output, target.parent)
    fsync_folder(paths.output, source.parent)
