"""A line now and then while something takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opsctl.core.output import message

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

#: Reading less than this takes no time worth a bar.
_LONG_FILE_BYTES = 64 << 20
_FIRST_S, _LONGEST_S = 2.0, 30.0


def now_and_then(words: Callable[[int], str], clock: Callable[[], float] = time.monotonic) -> Callable[[int], None]:
    """Return a function that prints `words` of a number, after two seconds and then ever longer pauses, at most 30
    s.
    """
    pause_s = _FIRST_S
    due_at = clock() + pause_s

    def say(number: int) -> None:
        nonlocal pause_s, due_at
        if (now := clock()) >= due_at:
            pause_s = min(2 * pause_s, _LONGEST_S)
            due_at = now + pause_s
            message(words(number))

    return say


def of_folder(folder: Path, what: str, clock: Callable[[], float] = time.monotonic) -> Callable[[int], None]:
    """Return a function that prints progress about a folder, such as "entries counted", and the rate."""
    began_at = clock()
    return now_and_then(
        lambda number: f"{folder}: {number:,} {what}, {number / max(clock() - began_at, 1e-3):,.0f} a second", clock
    )


def of_bytes(total: int | None = None, clock: Callable[[], float] = time.monotonic) -> Callable[[int], None]:
    """Return a function that prints the number of bytes done and the rate; with `total`, also the time left.

    A job that runs the command records them too, so that no later start repeats them.
    """
    from opsctl.core.units import bytes_words
    from opsctl.run.state.background_progress import tell_progress
    from opsctl.slurm.durations import format_duration

    began_at = clock()

    def words(done: int) -> str:
        each_s = done / max(clock() - began_at, 1e-3)
        left = f", {format_duration((total - done) / each_s)} left" if total and 0 < done < total and each_s > 0 else ""
        whole = f" of {bytes_words(total)}" if total else ""
        return f"{bytes_words(done)}{whole}, {bytes_words(int(each_s))}/s{left}"

    say = now_and_then(words, clock)

    def tell(done: int) -> None:
        tell_progress(done)
        say(done)

    return tell


@contextmanager
def reading_bar(file: Path) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr while a long file is read, if stderr is a terminal.

    The function that it yields takes the position that was read to and the size, in bytes.
    """
    if not sys.stderr.isatty():
        yield lambda _at, _size: None
        return
    shown: list[ProgressBar[int]] = []

    def show(at: int, size: int) -> None:
        if not shown and size - at >= _LONG_FILE_BYTES:
            shown.append(click.progressbar(length=size, label=f"reading {file.name}", file=sys.stderr))
        for bar in shown:
            bar.update(at - bar.pos)

    try:
        yield show
    finally:
        for bar in shown:
            bar.render_finish()
