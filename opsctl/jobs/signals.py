"""Signals that Slurm sends to a job: noted, so that what they ask for happens where it is safe."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from types import FrameType

#: SIGUSR1 is the warning before the limit; after the others Slurm kills the job.
NOTED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
_ENDING = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """The signals that this process has received."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._at: dict[int, float] = {}

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal. A repeated signal is not noted again."""
        if number not in self._at:
            self._at[number] = time.monotonic()
            self.received.append(number)

    @property
    def any(self) -> bool:
        """Return whether one of NOTED has come."""
        return bool(self.received)

    @property
    def warned_at(self) -> float | None:
        """When the warning came, by the monotonic clock."""
        return self._at.get(signal.SIGUSR1)

    @property
    def ended_at(self) -> float | None:
        """When Slurm asked the job to end: the limit, scancel, preemption."""
        return min((self._at[number] for number in _ENDING if number in self._at), default=None)

    def names(self) -> str:
        """`SIGUSR1, SIGTERM`: in the order in which they came; empty before."""
        return ", ".join(signal.Signals(number).name for number in self.received)


@contextlib.contextmanager
def noted_signals() -> Iterator[Signals]:
    """Note these signals instead of dying of them."""
    signals = Signals()
    before = {number: signal.signal(number, signals.note) for number in NOTED}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signal_session(child: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a child that leads its own session, and to all that it has started there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def exit_words(code: int) -> tuple[int, str]:
    """Return a child's exit code as a shell has it, 128 + N after signal N, and what killed it; empty for nothing."""
    return (code, "") if code >= 0 else (128 - code, f"killed by {signal.Signals(-code).name}")
