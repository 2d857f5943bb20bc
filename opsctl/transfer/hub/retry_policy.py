"""How long a sync may take in all, and waiting within that by what the other side says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from opsctl.core.errors import OpsctlError
from opsctl.transfer.hub.hub_errors import NotNow

#: Waits where the other side names none, the last one again and again.
WAITS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
#: One request may take no longer, even where there is more time.
LONGEST_ANSWER_S = 300.0
Value = TypeVar("Value")


class OutOfTime(OpsctlError):
    """The other side did not take it within the time that there was; what has arrived has arrived."""


@dataclass
class Patience:
    """The time that there is, from when it is made."""

    most_s: float
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = lambda _line: None
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.clock() + self.most_s

    @property
    def left_s(self) -> float:
        """Seconds; never negative."""
        return max(0.0, self._end - self.clock())

    @property
    def answer_s(self) -> float:
        """How long one answer may be waited for."""
        return max(1.0, min(LONGEST_ANSWER_S, self.left_s))

    def check(self) -> None:
        """Raise OutOfTime where there is none left."""
        if not self.left_s:
            raise OutOfTime(f"the time for it is over ({self.most_s:.0f} s)")

    def wait(self, seconds: float, why: str) -> None:
        """Sleep so long. Raises OutOfTime, at once, where there is not so much left."""
        if seconds >= self.left_s:
            raise OutOfTime(
                f"the hub: {why}; it would have to be asked again in {seconds:.0f} s, and {self.left_s:.0f} s are left"
            )
        if seconds >= WAITS_S[3]:
            self.say(f"the hub: {why}; asking again in {seconds:.0f} s")
        self.sleep(seconds)

    def through(self, ask: Callable[[], Value]) -> Value:
        """What `ask` returns, asked again as long as it raises NotNow and there is time. Raises OutOfTime."""
        for tries in range(1_000_000):
            self.check()
            try:
                return ask()
            except NotNow as later:
                usual_s = WAITS_S[min(tries, len(WAITS_S) - 1)]
                self.wait(usual_s if later.wait_s is None else later.wait_s, str(later))
        raise AssertionError("no time ends")
