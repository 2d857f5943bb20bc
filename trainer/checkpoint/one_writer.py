"""Two trainings that somebody starts by hand on one folder: the second is refused, and saves over nothing.

A run of opsctl's has its lease for that. Without one the first rank keeps the kernel's lock on a file beside the
checkpoints for as long as its process lives: nobody has to clear up behind one that was killed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from trainer.checkpoint.destination import Destination, as_checkpoint_error
from trainer.core.console import complain
from trainer.core.files import be_as_open_as_its_folder
from trainer.formats.errors import CheckpointError
from trainer.formats.file_lock import is_locked_by_another, open_to_lock, refuse_other_than_a_plain_file
from trainer.parallel.agreement import from_first_rank

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
