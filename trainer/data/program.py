"""Common parts of programs over data files and checkpoints: progress, signals, errors as one line and an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn

from trainer.core.console import failed
from trainer.formats.errors import CheckpointError, DataError
from trainer.recipe.options import OptionsError

QUIET_S = 2.0
LINE_EVERY_S = 30.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_program(work: Callable[[], int | None], left: Callable[[], str], data_error: int = 2) -> int:
    """Run `work` and return its exit code: 1 after a failure, 2 for wrong usage or data, 130 if interrupted.

    left: returns what remains on the disk, for the end of a message. data_error: the exit code of a DataError.
    """
    before = {number: signal.signal(number, _interrupted) for number in _SIGNALS}
    try:
        return work() or 0
    except DataError as error:
        return failed(str(error), data_error)
    except (OptionsError, ValueError) as error:
        return failed(str(error), 2)
    except CheckpointError as error:
        return failed(str(error), 1)
    except OSError as error:
        return failed(f"{error.filename or 'the data'}: {error.strerror or error}; {left()}", 1)
    except KeyboardInterrupt:
        return failed(f"interrupted; {left()}", 130)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupted(_number: int, _frame: Any) -> NoReturn:
    """Interrupt the work. Later signals must not interrupt the removal of unfinished files."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines: the first column left aligned, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def report_step(steps_to: int | None) -> None:
    """Write one byte per completed step to a descriptor, if given. A closed pipe is ignored."""
    if steps_to is not None:
        with contextlib.suppress(OSError):
            os.write(steps_to, b".")


class Progress:
    """A progress report. Call `reached(bytes)` inside `with`, at any rate. begun_bytes: done before."""

    def __init__(self, what: str, total_bytes: int, begun_bytes: int = 0):
        self._what, self._total, self._begun = what, max(1, total_bytes), begun_bytes
        self._started = time.monotonic()
        self._next = self._started + QUIET_S
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def reached(self, read_bytes: int) -> None:
        """Report `read_bytes` of the total as done."""
        now = time.monotonic()
        if now < self._next:
            return
        if sys.stderr.isatty():
            self._draw(read_bytes)
            self._next = now + 0.1
        else:
            share = min(1.0, read_bytes / self._total)
            done = (read_bytes - self._begun) / self._total
            left_s = (now - self._started) * (1 - share) / max(done, 1e-9)
            sys.stderr.write(f"{self._what}: {share:.0%}, about {left_s:.0f} s left\n")
            self._next = now + LINE_EVERY_S

    def _draw(self, read_bytes: int) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=read_bytes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
