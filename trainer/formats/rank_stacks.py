"""What `trainer.stacks` prints about each rank of its node: a line of JSON."""

from __future__ import annotations

import msgspec


class RankStack(msgspec.Struct, frozen=True):
    """The Python stacks of one rank's threads, or why there are none."""

    rank: int
    node: str = ""
    pid: int | None = None
    state: str = ""  # of the process, as /proc has it: R, S, D, T, ...
    text: str = ""  # faulthandler's, the main thread last; empty where the process did not answer
