"""One part of a probe after another, each in a process of its own that is killed when its time is up.

What hangs in a driver or a file system does not hear even that, and is left behind: the others are still told.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.formats.attempt.node_samples import BEGAN, ENDED, FAILED, LATE, LONGEST_TEXT, ProbeLine
from trainer.formats.json_text import json_line

_POLL_S = 0.01


class Tell(Protocol):
    """Says one thing that a part found."""

    def __call__(self, what: str, found: float | str, of: int | None = None) -> None:
        """found: a number or a text. of: see `ProbeLine`."""


@dataclass(frozen=True)
class Part:
    """What one process measures."""

    name: str
    limit_s: float
    measure: Callable[[Tell], None]
    in_turn: bool = False  # what measures how fast this host is


def say(line: ProbeLine) -> None:
    """One write, so that lines of several processes stay whole."""
    data = json_line(line).encode() + b"\n"
    with contextlib.suppress(OSError):  # whoever listened has gone
        os.write(sys.stdout.fileno(), data)


def run_part(node: str, part: Part, turn: str = "", turn_wait_s: float = 0.0) -> None:
    """Measure one part. turn: name of what nodes that share this host take turns by."""
    with _turn(turn, turn_wait_s) if part.in_turn and turn else contextlib.nullcontext():
        run_together(node, [part])


def run_together(node: str, parts: Sequence[Part]) -> None:
    """Measure all of `parts` at the same time, each in its process."""
    running: dict[int, tuple[Part, float]] = {}
    for part in parts:
        say(ProbeLine(node=node, part=part.name, what=BEGAN))
        running[_forked(node, part)] = (part, time.monotonic() + part.limit_s)
    while running:
        time.sleep(_POLL_S)
        for pid, (part, deadline) in list(running.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del running[pid]
                _tell_end(node, part, os.waitstatus_to_exitcode(status))
            elif time.monotonic() > deadline:
                del running[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                said = f"not done within {part.limit_s:g} s"
                say(ProbeLine(node=node, part=part.name, what=LATE, text=said))


def _tell_end(node: str, part: Part, code: int) -> None:
    if code < 0:
        said = f"its process was ended by {signal.Signals(-code).name}"
        say(ProbeLine(node=node, part=part.name, what=FAILED, text=said))
    elif code == 0:
        say(ProbeLine(node=node, part=part.name, what=ENDED))


def _forked(node: str, part: Part) -> int:
    """Fork the part's process; nothing here has started threads or touched a GPU."""
    pid = os.fork()
    if pid:
        return pid

    def tell(what: str, found: float | str, of: int | None = None) -> None:
        number, text = (None, found[:LONGEST_TEXT]) if isinstance(found, str) else (float(found), "")
        say(ProbeLine(node=node, part=part.name, what=what, number=number, text=text, of=of))

    code = 1
    try:
        part.measure(tell)
        code = 0
    except BaseException as error:
        tell(FAILED, f"{type(error).__name__}: {error}")
    os._exit(code)


@contextlib.contextmanager
def _turn(name: str, wait_s: float) -> Iterator[None]:
    """Hold this host's turn, or go on without when it is not to be had within `wait_s` seconds.

    Several of Slurm's nodes are one host on a local cluster, and would measure each other. A name without a file, which
    the kernel frees when its holder dies.
    """
    held = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + wait_s
    try:
        while True:
            try:
                held.bind(f"\0{name}")
                break
            except OSError:
                if time.monotonic() >= deadline:
                    break
            time.sleep(_POLL_S)
        yield
    finally:
        held.close()
