"""How long an answer is waited for where a library waits as long as it likes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

#: A line that carries less counts as broken: what carries many bytes may take longer than what carries none.
_SLOWEST_BYTES_PER_S = 64 << 10


class NoAnswer(Exception):
    """It was waited for, and did not come."""


def limit_s(patience_s: float, count: int) -> float:
    """Seconds that an answer may take which carries, or follows on, `count` bytes."""
    return patience_s + count / _SLOWEST_BYTES_PER_S


def within(seconds: float, do: Callable[[], T]) -> T:
    """What `do` returns or raises. Raises NoAnswer where that takes too long, or `do` says so itself.

    `do` is in a thread of its own, which is left behind then and holds no process up: a call that waits for another
    machine cannot be ended from without.
    """
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(do())
        except BaseException as error:
            found.set_exception(error)

    begun = time.monotonic()
    threading.Thread(target=run, name="store", daemon=True).start()
    try:
        return found.result(seconds)
    except TimeoutError:
        raise NoAnswer(f"no answer came in {time.monotonic() - begun:.0f} s") from None
