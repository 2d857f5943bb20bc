"""The destination of a training's saves: the folder, even if it is moved, the lease, and the writer's lock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.core.console import complain
from trainer.core.files import HeldFolder, be_as_open_as_its_folder, make_folder
from trainer.formats.attempt.lease import Holder, locked_lease, why_lost
from trainer.formats.checkpoint.starting import refuse_later
from trainer.formats.errors import CheckpointError
from trainer.formats.file_lock import is_locked_by_another, open_to_lock, refuse_other_than_a_plain_file
from trainer.parallel.agreement import Refusal, from_first_rank, on_every_rank

#: Seconds that a save waits for the lease's lock before it reads the lease without it.
LOCK_WAIT_S = 30.0


class Overtaken(Refusal):
    """Another writer has taken over this training. The text is a clause that names it. Every rank raises this."""


class OwnLease:
    """The lease number with which this training writes. Used on the first rank only."""

    def __init__(self, path: Path, number: int, lock_wait_s: float = LOCK_WAIT_S) -> None:
        self._path, self._number, self._lock_wait_s = path, number, lock_wait_s
        self._folder = HeldFolder(path.parent)
        self._own: Holder | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[str | None]:
        """Yield why this training may no longer write, or None, while holding the lock that a new writer also needs.

        A file that cannot be read is no reason to stop: all training since the last checkpoint would be lost.
        """
        with contextlib.ExitStack() as held:
            yield self._look(held)

    def _look(self, held: contextlib.ExitStack) -> str | None:
        try:
            folder = self._folder.descriptor()
            lease = held.enter_context(locked_lease(self._path.name, self._lock_wait_s, dir_fd=folder)).read()
        except OSError as error:
            complain(f"trainer: {self._path} cannot be read ({error.strerror}): continuing without checking its holder")
            return None
        if self._own is None and lease.last is not None and lease.last.number == self._number:
            self._own = lease.last
        return why_lost(lease, self._own or Holder(self._number, ""))


@dataclass(frozen=True)
class Destination:
    """The folder of a training's saves. Without a lease, every process may write."""

    folder: HeldFolder
    lease: OwnLease | None = None

    def shown(self) -> contextlib.AbstractContextManager[str | None]:
        """As `OwnLease.shown`."""
        return self.lease.shown() if self.lease else contextlib.nullcontext()

    def make(self, with_parents: bool = False) -> None:
        """Create the folder if it does not exist. Raises OSError.

        If an open folder has vanished with its parents, it was moved to an unknown place. Without `with_parents` it is
        not created again at its old place.
        """
        with contextlib.suppress(OSError):
            self.folder.descriptor()
            return
        if with_parents or self.folder.path.parent.is_dir():
            make_folder(self.folder.path)
        self.folder.descriptor()


def refuse_if_overtaken(lease: OwnLease | None) -> None:
    """Raise Overtaken on every rank if the first one finds another writer of this training. Collective."""

    def look() -> str | None:
        if lease is None:
            return None
        with lease.shown() as lost:
            return lost

    lost = from_first_rank(look, ())
    if lost is not None:
        raise Overtaken(lost)


def open_destination(destination: Destination, iteration: int) -> None:
    """Create the folder and open it on every rank, for a training that begins at `iteration`.

    Collective. Raises Refusal if the folder cannot be created, if its latest checkpoint is unknown, or if that is
    later than the training's start: the first save would replace it.
    """
    root = destination.folder.path

    def make() -> None:
        refuse_later(root, iteration)
        with as_checkpoint_error(destination.folder):
            destination.make(with_parents=True)

    def hold() -> None:
        with as_checkpoint_error(destination.folder):
            destination.folder.descriptor()

    from_first_rank(make, (CheckpointError,))
    on_every_rank(hold, (CheckpointError,))


@contextlib.contextmanager
def as_checkpoint_error(folder: HeldFolder) -> Iterator[None]:
    """Raise errors of files in the folder as CheckpointErrors that name the user's path."""
    try:
        yield
    except OSError as error:
        where = error.filename if error.filename is not None else folder.path
        raise CheckpointError(folder.said(f"cannot write {where}: {error.strerror or error}")) from error
    except CheckpointError as error:
        raise CheckpointError(folder.said(str(error))) from error


WRITER_LOCK = ".writer.lock"
#: Seconds to wait for a process that is about to end.
_WAIT_S = 5.0


@contextlib.contextmanager
def only_writer(destination: Destination) -> Iterator[None]:
    """Hold the lock on the folder, which is created first.

    Collective. Raises Refusal if another process has the lock; with a lease, which decides, only print it. A file
    system without locks, or a file that cannot be opened, excludes no process.
    """
    with contextlib.ExitStack() as held:
        from_first_rank(lambda: _take(destination, held), (CheckpointError,))
        yield


def _take(destination: Destination, held: contextlib.ExitStack) -> None:
    with as_checkpoint_error(destination.folder):
        destination.make(with_parents=True)
        path = destination.folder.place() / WRITER_LOCK
    shown = destination.folder.path / WRITER_LOCK
    try:
        fd = _opened(path)
    except OSError as error:
        complain(f"trainer: {shown} cannot be locked ({error.strerror}): another training may save here")
        return
    held.callback(os.close, fd)
    if is_locked_by_another(fd, 0.0 if destination.lease else _WAIT_S):
        what = f"another process has the lock on {shown}, so it saves to this folder too"
        if destination.lease is None:
            raise CheckpointError(f"{what}: stop one of the two, or use another --save for this one")
        complain(f"trainer: {what}; continuing, because this training has the run's lease")


def _opened(path: Path) -> int:
    fd = open_to_lock(path, mode_if_new=0o600)
    try:
        refuse_other_than_a_plain_file(fd, path)
        with contextlib.suppress(OSError):
            be_as_open_as_its_folder(path)
    except BaseException:
        os.close(fd)
        raise
    return fd
