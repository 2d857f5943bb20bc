"""Counting, in one process, which lines of ours run.

Imports nothing of ours: it also runs at the very start of commands that tests start, see `tests.measure`.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("opsctl", "trainer")


def counter(folder: str | Path) -> coverage.Coverage:
    """A counter of our packages' lines whose data lies in `folder`, a file for every process."""
    made = coverage.Coverage(
        data_file=Path(folder) / "lines",
        data_suffix=True,
        source=[str(ROOT / package) for package in PACKAGES],
        config_file=False,
        messages=False,
    )
    made.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported", "couldnt-parse"])
    return made


def start(folder: str | Path) -> Callable[[], None]:
    """Count until this process ends, or what is returned is called.

    What cannot be written then (a small disk, a folder that is gone) is left out silently: tests compare what commands
    print.
    """
    counting = counter(folder)
    with contextlib.suppress(OSError):
        counting.start()

    def finish() -> None:
        atexit.unregister(finish)  # a second save would be an empty one
        with contextlib.suppress(Exception):
            counting.stop()
            counting.save()

    atexit.register(finish)
    return finish
