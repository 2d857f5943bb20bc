"""A line now and then while something takes long."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from opsctl.core.output import message

_FIRST_S, _LONGEST_S = 2.0, 30.0


def now_and_then(words: Callable[[int], str], clock: Callable[[], float] = time.monotonic) -> Callable[[int], None]:
    """What says `words` of a number, from two seconds on, after pauses that double up to half a minute."""
    pause_s = _FIRST_S
    due_at = clock() + pause_s

    def say(number: int) -> None:
        nonlocal pause_s, due_at
        if (now := clock()) >= due_at:
            pause_s = min(2 * pause_s, _LONGEST_S)
            due_at = now + pause_s
            message(words(number))

    return say


def of_folder(folder: Path, what: str) -> Callable[[int], None]:
    """What says now and then that a number of the folder is, say, "entries counted"."""
    return now_and_then(lambda number: f"{folder}: {number:,} {what}")


def of_bytes(total: int | None = None) -> Callable[[int], None]:
    """What says now and then how many bytes are done; `total` is all of them, where that is known.

    A job that carries the command out is told too: no later start has to do them again.
    """
    from opsctl.core.units import bytes_words
    from opsctl.run.state.background_progress import tell_progress

    whole = f" of {bytes_words(total)}" if total else ""
    say = now_and_then(lambda done: f"{bytes_words(done)}{whole}")

    def tell(done: int) -> None:
        tell_progress(done)
        say(done)

    return tell
