"""Signals become a stop request: a file that the trainer polls with the kill switch.

Signals are never sent on. A forwarded USR1 kills the launchers while their ranks still save, so one file serves Slurm's
warning, preemption and people alike.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from opsctl.core.files.state_files import make_folder, write_state
from opsctl.core.timestamps import now
from trainer.formats.attempt.attempt_records import StopRequest

WARNINGS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class Signals:
    """What this process has been sent so far. Handlers only note it: the rest happens where it is safe."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def note(self, number: int, _frame: FrameType | None) -> None:
        """The handler. A signal that comes again is not noted again."""
        if number not in self.received:
            self.received.append(number)

    @property
    def any(self) -> bool:
        """Whether any of WARNINGS has come."""
        return bool(self.received)

    @property
    def told_to_end(self) -> bool:
        """Slurm is about to kill the job: the limit, scancel, preemption."""
        return signal.SIGTERM in self.received or signal.SIGINT in self.received

    def names(self) -> str:
        """`SIGUSR1, SIGTERM`: in the order in which they came; empty before."""
        return ", ".join(signal.Signals(number).name for number in self.received)


@contextmanager
def noted_signals() -> Iterator[Signals]:
    """Note warning signals instead of dying of them."""
    signals = Signals()
    before = {number: signal.signal(number, signals.note) for number in WARNINGS}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def request_stop(root: Path, path: Path, why: str) -> bool:
    """Create the stop request at `path`, under the run's `root`, unless it is there. Returns whether it did."""
    if os.path.lexists(path):
        return False
    make_folder(root, path.parent)
    by = f"job process {os.getpid()} on {socket.gethostname()}"
    write_state(root, path, StopRequest(why, now().replace(microsecond=0), by))
    return True
