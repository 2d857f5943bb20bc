"""Folded node lists as Slurm prints them."""

from __future__ import annotations

import re

_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_ONE_BRACKET = re.compile(r"([^\[]*)\[([^\]]*)\]([^\[]*)")


def expand_nodes(folded: str) -> list[str]:
    """`x[01-02,5],y` -> x01, x02, x5, y: the order in which Slurm lists them, and its tasks. Padding is kept.

    ClusterShell does the ranges, a part at a time, because a whole NodeSet would sort.
    """
    from ClusterShell.NodeSet import NodeSet

    names: list[str] = []
    for part in _PART.findall(folded):
        one = _ONE_BRACKET.fullmatch(part)
        pieces = [f"{one[1]}[{item}]{one[3]}" for item in one[2].split(",")] if one else [part]
        for piece in pieces:
            names.extend(str(name) for name in NodeSet(piece))
    return names
