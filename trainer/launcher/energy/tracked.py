"""A rank's hold on its node's tracker: started once on each node, asked to flush, and never waited for by a step."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trainer
from trainer.formats.distribution import install_command
from trainer.launcher.energy.orders import FLUSH, STOP, Order, order_line

#: Longest time that a rank that leaves waits for the last total to be written.
LAST_TOTAL_S = 3.0
_LONGEST_SENTENCE = 4096


def missing() -> str | None:
    """What is missing here for measuring, with what to type; None where nothing is."""
    if importlib.util.find_spec("codecarbon") is not None:
        return None
    return f"codecarbon is not installed for {sys.executable}: {install_command('carbon')}, or leave the option out"


class Tracker:
    """The tracker of this rank's node: a process that reads orders from a pipe and ends by itself when that closes."""

    def __init__(self, process: subprocess.Popen[bytes], tell: Callable[[str], None]) -> None:
        self._process, self._tell = process, tell
        self._has_told = False
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)

    def flush(self) -> None:
        """Have it write its total soon. Returns at once; says once where there is no tracker any more."""
        self._send(FLUSH)
        self._look()

    def close(self) -> None:
        """Have it write its last total, and wait for that a moment."""
        self._send(STOP)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_TOTAL_S)
        self._look()

    def _send(self, order: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is gone, or so far behind that the pipe is full
            os.write(self._process.stdin.fileno(), order)

    def _look(self) -> None:
        status = self._process.poll()
        if not status or self._has_told:
            return
        self._has_told = True
        assert self._process.stderr is not None
        said = self._process.stderr.read(_LONGEST_SENTENCE).decode(errors="replace").strip()
        why = said.splitlines()[-1] if said else f"its exit status was {status}"
        self._tell(f"energy is not measured on this node from here on: {why}")


@contextmanager
def tracker_of_node(order: Order, tell: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """A tracker while inside; what it gives has it write its total. Nothing that happens to it ends the training."""
    try:
        tracker = Tracker(_start(order), tell)
    except OSError as error:
        tell(f"energy is not measured on this node: cannot start {sys.executable}: {error.strerror}")
        yield lambda: None
        return
    try:
        yield tracker.flush
    finally:
        tracker.close()


def _start(order: Order) -> subprocess.Popen[bytes]:
    above = str(Path(trainer.__file__).resolve().parents[1])
    inherited = os.environ.get("PYTHONPATH")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer.launcher.energy.sampler", order_line(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{above}:{inherited}" if inherited else above},
        start_new_session=True,  # what is sent to the rank's process group is not for it
    )
