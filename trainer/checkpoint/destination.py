"""The destination of a training's saves: the folder wherever it is moved to, the lease, and the lock of the writer."""

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

#: Seconds that a save waits for the lease's lock, before it goes by what it reads without.
LOCK_WAIT_S = 30.0


class Overtaken(Refusal):
    """Another writer has this training; the text is the clause that says who. Every rank knows it."""


class OwnLease:
    """The number under which this training writes. Used on the first rank alone."""

    def __init__(self, path: Path, number: int, lock_wait_s: float = LOCK_WAIT_S) -> None:
        self._path, self._number, self._lock_wait_s = path, number, lock_wait_s
        self._folder = HeldFolder(path.parent)
        self._own: Holder | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[str | None]:
        """While the lock is held that whoever overtakes needs too: why this training may write no more, or None.

        A file that cannot be read says nothing against it: what it trained since the last checkpoint would be lost.
        """
        with contextlib.ExitStack() as held:
            yield self._look(held)

    def _look(self, held: contextlib.ExitStack) -> str | None:
        try:
            folder = self._folder.descriptor()
            lease = held.enter_context(locked_lease(self._path.name, self._lock_wait_s, dir_fd=folder)).read()
        except OSError as error:
            complain(f"trainer: {self._path} cannot be read ({error.strerror}): going on without knowing who has it")
            return None
        if self._own is None and lease.last is not None and lease.last.number == self._number:
            self._own = lease.last
        return why_lost(lease, self._own or Holder(self._number, ""))


@dataclass(frozen=True)
class Destination:
    """What a save goes to. Without a lease everybody may."""

    folder: HeldFolder
    lease: OwnLease | None = None

    def shown(self) -> contextlib.AbstractContextManager[str | None]:
        """As `OwnLease.shown`."""
        return self.lease.shown() if self.lease else contextlib.nullcontext()

    def make(self, with_parents: bool = False) -> None:
        """Make the folder where there is none. Raises OSError.

        One that was held and has vanished with all around it was moved to where nobody can follow: without parents it
        is not made anew at its old place.
        """
        with contextlib.suppress(OSError):
            self.folder.descriptor()
            return
        if with_parents or self.folder.path.parent.is_dir():
            make_folder(self.folder.path)
        self.folder.descriptor()


def refuse_if_overtaken(lease: OwnLease | None) -> None:
    """Collective. Raises Overtaken on every rank where the first finds that another writer has this training."""

    def look() -> str | None:
        if lease is None:
            return None
        with lease.shown() as lost:
            return lost

    lost = from_first_rank(look, ())
    if lost is not None:
        raise Overtaken(lost)


def open_destination(destination: Destination, iteration: int) -> None:
    """Make the folder and hold it on every rank, for a training that begins at `iteration`.

    Collective. Raises Refusal where it cannot be made, where the latest of its checkpoints cannot be told, and where
    that is later than the training begins: the first save would take its place.
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
    """Errors of files in the folder as CheckpointErrors that call it as the user does."""
    try:
        yield
    except OSError as error:
        where = error.filename if error.filename is not None else folder.path
        raise CheckpointError(folder.said(f"cannot write {where}: {error.strerror or error}")) from error
    except CheckpointError as error:
        raise CheckpointError(folder.said(str(error))) from error


WRITER_LOCK = ".writer.lock"
#: Seconds that are left to one that is just ending.
_WAIT_S = 5.0


@contextlib.contextmanager
def only_writer(destination: Destination) -> Iterator[None]:
    """Hold the lock on what is saved to, which is made first.

    Collective. Raises Refusal where another process has it: with a lease, which decides, that is only said. A file
    system without locks, or a file that cannot be opened, keeps nobody away.
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
        complain(
            f"trainer: {shown} cannot be locked ({error.strerror}): whether another training saves here is unknown"
        )
        return
    held.callback(os.close, fd)
    if is_locked_by_another(fd, 0.0 if destination.lease else _WAIT_S):
        what = f"another process has the lock on {shown}, so it saves to this folder too"
        if destination.lease is None:
            raise CheckpointError(f"{what}: stop one of the two, or give this one another --save")
        complain(f"trainer: {what}; going on, as this training has the run's lease")


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
