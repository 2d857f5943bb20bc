"""Common parts of this package's programs: interruptions, and errors as one line and an exit code."""

from __future__ import annotations

import contextlib
import ctypes
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from trainer.core.console import failed, printable
from trainer.formats.errors import CheckpointError

_M_MMAP_THRESHOLD = -3
_GIVEN_BACK_BYTES = 1 << 20


def run_program(work: Callable[[], None]) -> int:
    """Run `work`. Return 0 on success, 1 after a failure, 130 if interrupted, and print the reason in one line."""
    before = signal.signal(signal.SIGTERM, _interrupted)
    give_freed_tensors_back()
    try:
        work()
    except CheckpointError as error:
        return failed(str(error), 1)
    except OSError as error:
        where = f"{printable(str(error.filename))}: " if error.filename else ""
        return failed(f"{where}{error.strerror or error}", 1)
    except KeyboardInterrupt:
        return failed("interrupted; unfinished output was removed", 130)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def give_freed_tensors_back() -> None:
    """Return the memory of freed tensors of a megabyte or more to the system at once.

    glibc raises that limit to the size of a freed block, and then keeps 16 MiB blocks on its heap: a freed aligned
    block seldom fits the next one of the same size.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _GIVEN_BACK_BYTES)


def _interrupted(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt
