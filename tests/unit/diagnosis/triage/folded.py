"""Unfold Slurm's node lists in the same way as its own programs."""

from __future__ import annotations

from ClusterShell.NodeSet import NodeSet


def unfolded(nodes: str) -> tuple[str, ...]:
    return tuple(NodeSet(nodes)) if nodes else ()
