"""Nodes as sinfo lists them, and folded lists of their names. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from opsctl.slurm.rows import rows

#: sinfo's own names, in the order in which `parse_nodes` reads them.
NODE_FIELDS = ("NodeList", "StateLong", "Reason", "Partition", "Memory")
#: In the state of a node that a job should not go on on, or will not. A mark such as `*` (does not answer) may follow.
_OUT_OF_SERVICE = ("drained", "draining", "down", "error", "fail", "failed", "failing", "inval", "unknown")
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_ONE_BRACKET = re.compile(r"([^\[]*)\[([^\]]*)\]([^\[]*)")
_NO_REASON = "none"
_DEFAULT_MARK = "*"


@dataclass(frozen=True)
class Node:
    """A node's state, with the reason that a person or Slurm gave."""

    name: str
    state: str  # sinfo's long state: "allocated", "draining", "down*"
    reason: str  # "" without one
    partitions: tuple[str, ...] = ()  # that it is in; the default one's name has a `*` behind it
    memory_mib: int = 0  # that Slurm counts on; 0: not known

    @property
    def is_out_of_service(self) -> bool:
        """Return whether Slurm gives it no more work, or it does not answer."""
        return _is_out_of_service(self.state)


@functools.lru_cache(maxsize=256)  # the states are few, the nodes may be thousands
def _is_out_of_service(state: str) -> bool:
    return state.rstrip("*~#!%$@^+-").lower() in _OUT_OF_SERVICE or state.endswith("*")


def parse_nodes(text: str) -> list[Node]:
    """Rows of `sinfo --Node` in `NODE_FIELDS`; a node has one row, however many partitions it is in."""
    found: dict[str, Node] = {}
    for name, state, reason, partition, memory in rows(text, len(NODE_FIELDS)):
        partitions = (*(found[name].partitions if name in found else ()), partition)
        memory_mib = int(memory) if memory.isdigit() else 0
        found[name] = Node(name, state, "" if reason.lower() == _NO_REASON else reason, partitions, memory_mib)
    return list(found.values())


def in_partition(nodes: Iterable[Node], partition: str | None) -> tuple[str, list[Node]]:
    """Return the partition's name (None: the default, empty if there is none) and its nodes, each once."""
    nodes = list(nodes)
    name = partition
    if name is None:
        marked = (one for node in nodes for one in node.partitions if one.endswith(_DEFAULT_MARK))
        name = next(marked, "").removesuffix(_DEFAULT_MARK)
    wanted = set(name.split(","))
    return name, [node for node in nodes if wanted & {one.removesuffix(_DEFAULT_MARK) for one in node.partitions}]


def expand_nodes(folded: str) -> list[str]:
    """Return x01, x02, x5 for `x[01-02,5]`, in Slurm's order with its padding; a whole NodeSet would sort."""
    from ClusterShell.NodeSet import NodeSet

    names: list[str] = []
    for part in _PART.findall(folded):
        one = _ONE_BRACKET.fullmatch(part)
        pieces = [f"{one[1]}[{item}]{one[3]}" for item in one[2].split(",")] if one else [part]
        for piece in pieces:
            names.extend(str(name) for name in NodeSet(piece))
    return names
