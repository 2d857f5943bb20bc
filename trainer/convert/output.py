"""Output folders that exist only when they are complete."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from trainer.core.files import create_file, fsync, make_folder
from trainer.formats.errors import CheckpointError
from trainer.formats.file_lock import is_locked, lock_within

# Not `.tmp-`: the next save removes such folders next to checkpoints.
_UNFINISHED = ".unfinished-"
# A file in it, which its writer keeps locked.
_MARK = ".writing"


@contextlib.contextmanager
def being_written(target: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `target` if the block succeeds and is removed if it fails.

    Raises CheckpointError, one line, if `target` exists, if the file system has less room than `needed_bytes`, and for
    every OSError of the block. Leftovers of a killed writer of the same target are removed.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - `resolve` would go through links, and keep none of their names
    with _as_checkpoint_error(target):
        refuse_taken(target)
        make_folder(target.parent)
        _remove_leftovers(target)
        refuse_without_room(target.parent, needed_bytes)
        folder = target.with_name(f"{_UNFINISHED}{target.name}.{secrets.token_hex(4)}")
        mark = -1
        try:
            make_folder(folder)
            mark = create_file(folder / _MARK)
            lock_within(mark, 0)
            yield folder
            (folder / _MARK).unlink()
            _fsync_all(folder)
            folder.rename(target)
            fsync(target.parent)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            if mark >= 0:
                os.close(mark)


def refuse_taken(target: Path) -> None:
    """Raise CheckpointError if `target` exists."""
    if os.path.lexists(target):
        raise CheckpointError(f"{target} exists already: give another --output, or remove it")


def refuse_without_room(folder: Path, needed_bytes: int) -> None:
    """Raise CheckpointError if the file system of `folder`, which may not exist yet, has too little room."""
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < needed_bytes:
        raise CheckpointError(
            f"{there} has {_gib(free)} free, {_gib(needed_bytes)} are needed: free space, or give another --output"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.1f} GiB"


def _remove_leftovers(target: Path) -> None:
    """Remove temporary folders of ended writers. A running writer holds the lock on its mark."""
    for folder in target.parent.iterdir():
        if not folder.name.startswith(f"{_UNFINISHED}{target.name}."):
            continue
        try:
            mark = os.open(folder / _MARK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            if not is_locked(mark):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(mark)


def _fsync_all(folder: Path) -> None:
    """Sync the files, then the names, in the folder and below it."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            fsync(Path(path) / name)
        fsync(Path(path))


@contextlib.contextmanager
def _as_checkpoint_error(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename if error.filename is not None else target
        raise CheckpointError(
            f"cannot write {where}: {error.strerror or error}; all of its files were removed"
        ) from error
