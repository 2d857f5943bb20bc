"""Slurm's folded node lists, unfolded as its own programs would."""

from __future__ import annotations

from ClusterShell.NodeSet import NodeSet


def unfolded(nodes: str) -> tuple[str, ...]:
    return tuple(NodeSet(nodes)) if nodes else ()
