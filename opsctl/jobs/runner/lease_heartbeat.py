"""Keeping a task's lease while its step lives, and noticing when somebody else has taken it.

The heartbeat has a thread of its own: a file system that does not answer must keep neither the step's output nor the
job's signals waiting, and a heartbeat that fails is no reason to end a training.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from opsctl.run.state.lease import OwnLease
from trainer.formats.attempt.lease import HEARTBEAT_S

#: How long the end of the thread, and giving the lease back, may take when the file system does not answer, seconds.
END_WAIT_S = 10.0


class Keeper:
    """The heartbeat of one lease, and what it has noticed so far."""

    def __init__(self, lease: OwnLease, every_s: float = HEARTBEAT_S) -> None:
        self.lease, self.every_s = lease, every_s
        self.lost = ""  # why the lease is not ours any more
        self._trouble = ""
        self._told = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin. The first heartbeat comes after `every_s` seconds: taking the lease was one."""
        self._thread.start()

    def stop(self) -> None:
        """No more heartbeats."""
        self._ended.set()
        self._thread.join(END_WAIT_S)

    def news(self) -> str | None:
        """What is to be said of failing heartbeats, once each; None when that is nothing new."""
        trouble = self._trouble
        if trouble == self._told:
            return None
        self._told = trouble
        if trouble:
            return f"opsctl: the lease's heartbeat fails, the training goes on: {trouble}"
        return "opsctl: the lease's heartbeat is back"

    def _run(self) -> None:
        while not self.lost and not self._ended.wait(self.every_s):
            try:
                self.lost = self.lease.beat() or ""
                self._trouble = ""
            except OSError as error:
                where = error.filename or self.lease.paths.lease
                self._trouble = f"{where}: {error.strerror or error}"
            except ValueError as error:  # the folder was moved this very moment
                self._trouble = str(error)


@contextlib.contextmanager
def kept(lease: OwnLease, every_s: float = HEARTBEAT_S) -> Iterator[Keeper]:
    """Keep `lease` inside the block."""
    keeper = Keeper(lease, every_s)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop()
