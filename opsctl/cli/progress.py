"""A line now and then while something takes long, for the person and not for a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable

from opsctl.output import message

_FIRST_S, _EACH_S = 2.0, 10.0


def every_few_seconds(words: str) -> Callable[[int], None]:
    """What says `words`, with `{}` in them for a number, from two seconds on and then every ten."""
    due_at = [time.monotonic() + _FIRST_S]

    def say(number: int) -> None:
        now = time.monotonic()
        if now >= due_at[0]:
            due_at[0] = now + _EACH_S
            message(words.format(f"{number:,}"))

    return say
