"""What `trainer.launcher.probing` prints on each node about it, and what its two passes are given of time and bytes.

Lines of JSON, each below a kilobyte: of a longer one srun passes on pieces, and mixes those of several nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

#: What a line may say beside a measure's name.
BEGAN, ENDED, FAILED, DONE = "began", "ended", "failed", "done"
#: Of a part whose time was up: it hangs, or is only slow.
LATE = "late"
#: The part that stands for the whole program on a node.
PROGRAM = "program"
#: The part in which nodes talk to each other.
NETWORK = "network"
LONGEST_TEXT = 300


class ProbeLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a node says: a number or a text that it found, or how far it has come."""

    node: str
    part: str
    what: str
    number: float | None = None
    text: str = ""
    of: int | None = None  # which of the node's GPUs, or the place of the node at the other end of a link


@dataclass(frozen=True)
class Effort:
    """How much a probe may take. Times are wall clock; a part that is not through with its own is killed."""

    name: str
    nodes_s: float  # each node by itself, all parts
    network_s: float  # all nodes together
    part_s: float  # one part
    window_s: float  # for which a rate is measured
    disk_bytes: int
    disk_s: float  # for which it is written at most
    verified_share: float  # of the free memory, filled and read back
    rounds: int  # of pairs; all that there are need one fewer than nodes
    pair_bytes: int
    ring_bytes: int

    @property
    def whole_s(self) -> float:
        """Seconds from the first srun to the last, at most: both passes, and ending a step of each that hangs."""
        return self.nodes_s + self.network_s + 3 * STEP_END_S


#: To end a step in which something hangs.
STEP_END_S = 4.0
QUICK = Effort("quick", 28.0, 20.0, 12.0, 0.15, 64 << 20, 0.5, 0.0, 31, 4 << 20, 16 << 20)
FULL = Effort("full", 240.0, 300.0, 120.0, 3.0, 1 << 30, 20.0, 0.5, 100_000, 64 << 20, 256 << 20)
EFFORTS = {one.name: one for one in (QUICK, FULL)}
