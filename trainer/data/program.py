"""What the programs over data files share: an end by signal as by Ctrl-C, errors as one line and an exit code."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from trainer.core.console import failed
from trainer.formats.errors import CheckpointError, DataError
from trainer.recipe.options import OptionsError


def run_program(work: Callable[[], int], when_interrupted: str) -> int:
    """The exit code of `work`, or of why it ended: 1 failed, 2 wrong usage or data, 130 interrupted."""
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        return work()
    except (OptionsError, DataError, ValueError) as error:
        return failed(str(error), 2)
    except CheckpointError as error:
        return failed(str(error), 1)
    except OSError as error:
        return failed(f"{error.filename or 'the data'}: {error.strerror or error}", 1)
    except KeyboardInterrupt:
        return failed(when_interrupted, 130)
    finally:
        signal.signal(signal.SIGTERM, before)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines: the first column to the left, every other one to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _interrupted(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt
