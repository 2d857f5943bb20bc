"""A folder that is there when it is whole, and not before."""

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

# Not `.tmp-`: what is called so beside checkpoints, the next save removes.
_UNFINISHED = ".unfinished-"
# In it: whose lock is held is still being written.
_MARK = ".writing"


@contextlib.contextmanager
def being_written(target: Path, needed_bytes: int) -> Iterator[Path]:
    """A folder beside `target` to write into, which becomes `target` where the block ends well, and else is removed.

    Raises CheckpointError, one line, where something is there already, where the file system has less room than
    `needed_bytes`, and for every OSError of the block. What a killed writer of the same target left behind is removed.
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
    """Raise CheckpointError where something is there already."""
    if os.path.lexists(target):
        raise CheckpointError(f"{target} is there already: give another --output, or remove it")


def refuse_without_room(folder: Path, needed_bytes: int) -> None:
    """Raise CheckpointError where the file system of `folder`, or of what is to be made, has less room than needed."""
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < needed_bytes:
        raise CheckpointError(
            f"{there} has {_gib(free)} free, {_gib(needed_bytes)} are needed: make room, or give another --output"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.1f} GiB"


def _remove_leftovers(target: Path) -> None:
    """Remove what others have begun and nobody writes any more: whoever does holds the lock on its mark."""
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
    """The folder's files, then the names in it and in all below it."""
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
        raise CheckpointError(f"cannot write {where}: {error.strerror or error}; nothing was left behind") from error
