"""What the demo says, and that time passes while it waits."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[..., None]]:
    """Seconds that pass, in place on a terminal, a line each ten seconds elsewhere."""
    started = time.monotonic()
    last_line_s = 0.0

    def tick(done: bool = False) -> None:
        nonlocal last_line_s
        elapsed = time.monotonic() - started
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K" if done else f"\r   waiting for {what}: {elapsed:.0f} s ")
            sys.stderr.flush()
        elif elapsed - last_line_s >= 10:
            last_line_s = elapsed
            sys.stderr.write(f"   waiting for {what}: {elapsed:.0f} s\n")

    try:
        yield tick
    finally:
        tick(done=sys.stderr.isatty())


def title(text: str) -> None:
    """What comes next, in a line of its own."""
    say(f"\n== {text}")


def say(text: str) -> None:
    """Print a line on stdout at once; a line of progress on the terminal makes room for it."""
    if sys.stderr.isatty():  # the line of progress gives way
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
