"""Nodes as sinfo lists them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.slurm.rows import rows

#: sinfo's own names, in the order in which `parse_nodes` reads them.
NODE_FIELDS = ("NodeList", "StateLong", "Reason")
#: In the state of a node that a job should not go on on, or will not. A mark such as `*` (does not answer) may follow.
_OUT_OF_SERVICE = ("drained", "draining", "down", "error", "fail", "failed", "failing", "inval", "unknown")
_NO_REASON = "none"


@dataclass(frozen=True)
class Node:
    """A node's state and why somebody, or Slurm, put it into that."""

    name: str
    state: str  # sinfo's long state: "allocated", "draining", "down*"
    reason: str  # "" without one

    @property
    def is_out_of_service(self) -> bool:
        """Whether Slurm gives it no more work, or it does not answer."""
        return self.state.rstrip("*~#!%$@^+-").lower() in _OUT_OF_SERVICE or self.state.endswith("*")


def parse_nodes(text: str) -> list[Node]:
    """Rows of `sinfo --Node` in `NODE_FIELDS`; a node has one row, however many partitions it is in."""
    found = {
        name: Node(name, state, "" if reason.lower() == _NO_REASON else reason)
        for name, state, reason in rows(text, len(NODE_FIELDS))
    }
    return list(found.values())
