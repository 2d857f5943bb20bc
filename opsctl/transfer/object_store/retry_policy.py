"""Repeating what failed for a reason that passes, with growing pauses, or as long a one as the other end asked for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.types import StoreError

T = TypeVar("T")

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 20.0
#: A store that has never answered is more likely misspelt than busy.
FIRST_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Passing:
    """An error that may be gone later: what it was, in a clause, and how long the other end asked to wait."""

    what: str
    wait_s: float | None = None


class Patience:
    """Repeats requests to one store for up to `patience_s` seconds each; `judge` says which errors pass."""

    def __init__(self, where: str, patience_s: float, judge: Callable[[Exception], Passing | None]) -> None:
        self._where, self._patience_s, self._judge = where, patience_s, judge
        self._answered = threading.Event()

    def __call__(self, do: Callable[[], T], flow: Flow) -> T:
        """What `do` returns. Raises StoreError when it kept failing, Stopped, and any error that does not pass."""
        begun, longest_s = time.monotonic(), _FIRST_PAUSE_S
        while True:
            try:
                found = do()
            except Exception as error:
                passing = self._judge(error)
                if passing is None:
                    self._answered.set()
                    raise
                wait_s = passing.wait_s if passing.wait_s is not None else random.uniform(longest_s / 2, longest_s)
                self._check(passing, wait_s, time.monotonic() - begun)
                flow.pause(wait_s)
                longest_s = min(_LONGEST_PAUSE_S, 2 * longest_s)
            else:
                self._answered.set()
                return found

    def _check(self, passing: Passing, wait_s: float, waited_s: float) -> None:
        patience_s = self._patience_s if self._answered.is_set() else min(FIRST_PATIENCE_S, self._patience_s)
        if waited_s + wait_s > patience_s:
            raise StoreError(f"{self._where}: {passing.what}, after {waited_s:.0f} s; try again later") from None
