"""A spike on purpose: where it is, and which iterations it lasts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPTION = "--spike-drill"
DATA, HARDWARE = KINDS = ("data", "hardware")
#: How many times as high the loss is.
FACTOR = 10.0


@dataclass(frozen=True)
class SpikeDrill:
    """The loss is FACTOR times what it is.

    DATA: from `first` to `last`, whenever these iterations are run, as with data that a model cannot learn from.
    HARDWARE: when `first` is run for the first time in a process, on one replica.
    """

    kind: str
    first: int
    last: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SpikeDrill | None:
        """As the option says, None without it. Raises ValueError for a word that says no drill.

        It lasts one iteration longer than the spike guard is patient.
        """
        word = options["spike_drill"]
        if word is None:
            return None
        match = re.fullmatch(r"([1-9][0-9]{0,17})(?::(\w+))?", word)
        if match is None:
            raise ValueError(f"{OPTION} {word}: give ITERATION or ITERATION:KIND, iterations counted from 1")
        first, kind = int(match[1]), match[2] or DATA
        if kind not in KINDS:
            raise ValueError(f"{OPTION} {word}: {kind} is no kind of spike; there are {', '.join(KINDS)}")
        return cls(kind, first, first + (options["spike_guard_patience"] if kind == DATA else 0))
