"""Checkpoints of other training programs, adopted: a folder of hard links and a manifest, as our trainer's have.

The links take no room, and everything that handles our checkpoints (list, verify, backup, restore, prune) handles
these. The program's own folders stay as it wrote them, and it loads and removes them by its own rules. A file whose
name has no step is copied, because a program may write over it.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import make_folder, read_state, write_atomically, write_state
from opsctl.run.checkpoints.inventory import latest_iteration
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.program import ASIDE, Program
from opsctl.run.programs.kind import SavedCheckpoint, found
from opsctl.run.state.checkpoint_readers import being_read
from trainer.formats.checkpoint.manifest import (
    LATEST,
    MANIFEST,
    TEMPORARY,
    Manifest,
    Original,
    SavedFile,
    checkpoint_folders,
    checksum,
    iteration_of,
    latest_folder,
    read_manifest,
    tag_of,
)
from trainer.formats.errors import CheckpointError

#: A checkpoint that changed more recently may still be written, seconds.
SETTLED_S = 3.0
_NUMBER = re.compile(r"\d{1,18}")
#: The newest adopted checkpoints stay when the program has removed its own.
_KEPT = 2


@dataclass(frozen=True)
class Adopted:
    """A checkpoint that was adopted now."""

    iteration: int
    folder: Path


def adopt(
    paths: RunPaths, program: Program, settled_s: float = SETTLED_S, before_run: Collection[Path] = ()
) -> list[Adopted]:
    """Adopt the program's complete checkpoints, and drop those that it has removed.

    Those that stay are the newest, the latest, restored ones and ones that a command is reading; with [retention], all.
    settled_s: seconds without a change after which a checkpoint counts as written; 0 when no process writes.
    before_run: those that the run has not saved. Returns the new ones, oldest first. Raises OpsctlError where hard
    links are not possible; OSError.
    """
    known = _originals(checkpoint_folders(paths.checkpoints))
    handled = {*known.values(), *_rolled_back(paths)}
    there = {path: mark for path in program.paths() if (mark := _mark(path)) is not None}
    settled = time.time() - settled_s
    new = [path for path, mark in there.items() if mark not in handled and mark.changed_at <= settled]
    # A program may have a second one of a step, such as Lightning's last.ckpt.
    taken = {iteration_of(folder.name) for folder, mark in known.items() if mark in there.values()}
    adopted = []
    for saved in reversed(
        found(new, program.kind.judge)
    ):  # only what is new is opened: jobs call this every few seconds
        if saved.problem or saved.iteration in taken:
            continue
        folder = _adopt(paths, program, saved, there[saved.path], saved.path in before_run)
        if folder is not None:
            adopted.append(Adopted(saved.iteration, folder))
            taken.add(saved.iteration)
    gone = [folder for folder in list(known)[_KEPT:] if known[folder] not in there.values()]
    if gone and not program.prunes:
        kept = {latest_iteration(paths.checkpoints), *taken, *being_read(paths)}
        for folder in gone:
            if iteration_of(folder.name) not in kept and not _is_restored(folder, known[folder]):
                _remove(folder)
    return adopted


def seconds_between_checkpoints(paths: RunPaths, seconds_per_iteration: float | None) -> float | None:
    """Return the training time between the two newest checkpoints, from their names; None if it is not known."""
    steps = [iteration_of(folder.name) for folder in checkpoint_folders(paths.checkpoints)[:2]]
    if seconds_per_iteration is None or len(steps) < 2 or steps[0] is None or steps[1] is None:
        return None
    return (steps[0] - steps[1]) * seconds_per_iteration


def prepare(paths: RunPaths, program: Program) -> Path | None:
    """Make the program's newest checkpoint the one that `latest` names, and return its path; None for a fresh start.

    Torn ones that the program would load, and those after a rollback, get another name. At the run's first start, so
    do those that are older than the run, unless it continues from them. Raises OpsctlError, OSError.
    """
    if problem := existing_problem(paths, program):
        raise OpsctlError(problem)
    older = [saved.path for saved in older_than_run(paths, program)]
    if program.existing == "aside":
        for path in older:
            path.rename(_free(path.with_name(ASIDE + path.name)))
    _note_start(paths, program)
    adopt(paths, program, settled_s=0.0, before_run=older)
    latest = latest_folder(paths.checkpoints)
    reached, original = -1, None
    if latest is not None:
        manifest = read_manifest(latest)
        reached = manifest.iteration
        original = _put_back(program, latest, manifest)
        if original is not None and _mark(original) not in _originals([latest]).values():  # of a restore or a moved run
            adopt(paths, program, settled_s=0.0)
    for saved in program.saved():
        is_torn = saved.problem is not None and program.kind.takes_torn
        if saved.iteration > reached and (saved.problem is None or is_torn):
            saved.path.rename(_free(saved.path.with_name(ASIDE + saved.path.name)))
    return original


def older_than_run(paths: RunPaths, program: Program) -> list[SavedCheckpoint]:
    """Return complete checkpoints that no attempt of the run can have saved, the newest first.

    Those are what the program's pattern matches before the first start with this pattern, and no earlier one matches.
    """
    patterns = read_state(paths.output, paths.started_patterns, list[str])
    handled = {*_originals(checkpoint_folders(paths.checkpoints)).values(), *_rolled_back(paths)}
    if (patterns is None and handled) or _own_pattern(paths, program) in (patterns or ()):
        return []
    output = glob.escape(str(paths.output))
    matched = {os.path.normpath(one) for pattern in patterns or () for one in glob.glob(f"{output}/{pattern}")}  # noqa: PTH207
    return [
        one
        for one in program.saved()
        if one.problem is None and os.path.normpath(one.path) not in matched and _mark(one.path) not in handled
    ]


def existing_problem(paths: RunPaths, program: Program) -> str | None:
    """Return why a start is refused because of checkpoints that are older than the run; None if it is not."""
    if program.existing is not None or not (older := older_than_run(paths, program)):
        return None
    return (
        f"[program] checkpoints matches {len(older)} that this run has not saved, the newest of step "
        f'{older[0].iteration}: {older[0].path}. Set existing = "continue" to resume from it, or existing = "aside" to '
        "rename them and start from the beginning"
    )


def remove_original(program: Program, folder: Path) -> None:
    """Remove the program's own checkpoint that `folder` is of, or it would be adopted again. Raises OSError.

    A path that the program's pattern does not match, or whose content is another one now, stays.
    """
    original = _originals([folder]).get(folder)
    path = next((one for one in program.paths() if original and str(one) == original.path), None)
    if path is None or _mark(path) != original:
        return
    gone = path.rename(_free(path.with_name(ASIDE + path.name)))  # half of it is never what the program finds
    if gone.is_dir() and not gone.is_symlink():
        shutil.rmtree(gone)
    else:
        gone.unlink()


def _note_start(paths: RunPaths, program: Program) -> None:
    patterns = read_state(paths.output, paths.started_patterns, list[str]) or []
    if (own := _own_pattern(paths, program)) not in patterns:
        make_folder(paths.output, paths.state)
        write_state(paths.output, paths.started_patterns, [*patterns, own])


def _own_pattern(paths: RunPaths, program: Program) -> str:
    """Return the program's pattern relative to the output folder: both may be moved together."""
    return os.path.relpath(program.checkpoints, paths.output) if program.checkpoints else ""


def _rolled_back(paths: RunPaths) -> Iterable[Original]:
    return _originals(paths.set_aside.glob("*/checkpoints/global_step*")).values()


def _originals(folders: Iterable[Path]) -> dict[Path, Original]:
    """Return adopted folder -> the program's checkpoint that it is of, in the order of `folders`."""
    originals = {}
    for folder in folders:
        with contextlib.suppress(CheckpointError):
            if (original := read_manifest(folder).original) is not None:
                originals[folder] = msgspec.structs.replace(original, before_run=False)
    return originals


def _was_before_run(folder: Path, mark: Original) -> bool:
    """Return True if `folder` is of the same checkpoint, which was moved or restored, and was there before the run."""
    with contextlib.suppress(CheckpointError):
        original = read_manifest(folder).original
        return original is not None and original.before_run and original.bytes == mark.bytes
    return False


def _is_restored(folder: Path, original: Original) -> bool:
    """Return True for the files of a restore, which are not the program's own: they are newer."""
    changed_at = max((folder.joinpath(name).stat().st_mtime for name in read_manifest(folder).files), default=0.0)
    return changed_at != original.changed_at


def _mark(path: Path) -> Original | None:
    """Return what identifies a checkpoint's present content; None if it was removed meanwhile."""
    try:
        files = _files(path)
        return Original(
            path=str(path),
            bytes=sum(one.stat().st_size for one in files.values()),
            changed_at=max((one.stat().st_mtime for one in files.values()), default=0.0),
        )
    except OSError:
        return None


def _files(path: Path) -> dict[str, Path]:
    """Return name in the adopted folder -> file of a program's checkpoint, a folder or one file."""
    if path.is_file():
        return {path.name: path}
    return {
        str(one.relative_to(path)): one for one in sorted(path.rglob("*")) if one.is_file() and not one.is_symlink()
    }


def _adopt(
    paths: RunPaths, program: Program, saved: SavedCheckpoint, mark: Original, is_before_run: bool
) -> Path | None:
    """Link the files into a new folder, and write its manifest; None if the program removes it meanwhile."""
    folder = paths.checkpoints / tag_of(saved.iteration)
    temporary = paths.checkpoints / f"{TEMPORARY}{folder.name}.{os.getpid()}"
    make_folder(paths.output, paths.checkpoints)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        make_folder(paths.output, temporary)
        files = {}
        for name, file in _files(saved.path).items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            _place(saved, file, temporary / name)
            files[name] = SavedFile(file.stat().st_size, checksum(temporary / name))
        if _mark(saved.path) != mark:  # the program writes over it
            raise FileNotFoundError
        batch = program.global_batch_size or 0
        manifest = Manifest(
            iteration=saved.iteration,
            consumed_train_samples=saved.iteration * batch,
            consumed_train_tokens=0,
            consumed_valid_samples=0,
            precision="unknown",
            layout={},
            model={},
            learning_rate={},
            files=files,
            original=msgspec.structs.replace(mark, before_run=is_before_run or _was_before_run(folder, mark)),
        )
        write_state(paths.output, temporary / MANIFEST, manifest.as_json())
        os.utime(temporary / MANIFEST, (mark.changed_at, mark.changed_at))  # readers take this for the time of the save
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, FileNotFoundError):
            return None
        advice = "; checkpoints must be on the file system of [run] output" if error.errno == errno.EXDEV else ""
        raise OpsctlError(
            f"{saved.path} cannot be linked into {paths.checkpoints}: {file_problem(error)}{advice}"
        ) from None
    if folder.exists():  # another content at the same step: the program trained it again
        _remove(folder)
    temporary.rename(folder)
    latest = latest_iteration(paths.checkpoints)  # not the newest folder after a repoint
    if latest is None or saved.iteration > latest:
        try:
            write_atomically(paths.output, paths.checkpoints / LATEST, folder.name)
        except OSError:  # a full disk: an adopted one that `latest` does not reach would be set aside at the next start
            _remove(folder)
            raise
    return folder


def _put_back(program: Program, folder: Path, manifest: Manifest) -> Path | None:
    """Link an adopted checkpoint to where the program had it, if it is no longer there as it was adopted."""
    if manifest.original is None:
        return None
    path = program.place_of(Path(manifest.original.path))
    is_file = list(manifest.files) == [path.name]
    # One that was damaged since; what is complete was adopted again.
    if path.exists() and _mark(path) != _originals([folder]).get(folder):
        path.rename(_free(path.with_name(ASIDE + path.name)))
    if not path.exists():
        for name in manifest.files:
            target = path if is_file else path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _place(SavedCheckpoint(manifest.iteration, path), folder / name, target)
    return path


def _place(saved: SavedCheckpoint, source: Path, target: Path) -> None:
    """Link a file of a checkpoint to `target`, or copy it if the program may write over it."""
    is_written_over = saved.path.name == source.name and saved.iteration not in map(int, _NUMBER.findall(source.name))
    (shutil.copy2 if is_written_over else os.link)(source, target)


def _remove(folder: Path) -> None:
    gone = folder.with_name(f"{TEMPORARY}removed-{folder.name}.{os.getpid()}")
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _free(path: Path) -> Path:
    """Return `path`, or the first of its numbered names that does not exist."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found
