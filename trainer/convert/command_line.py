"""What the programs of this room share: sizes on the command line, interruptions, errors as one line and a code."""

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
    """Do `work`; 0 done, 1 failed, 130 interrupted, with one line of why."""
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
        return failed("interrupted; what was being written is gone", 130)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def give_freed_tensors_back() -> None:
    """Have the memory of every tensor of a megabyte or more go back to the system when it is freed.

    glibc raises the size from which it does so to that of what was freed, and then keeps 16 MiB after 16 MiB on its
    heap: a freed aligned piece seldom fits the next one of the same size.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _GIVEN_BACK_BYTES)


def _interrupted(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt
