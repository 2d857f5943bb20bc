"""Recognize the names of nodes in the text of a log. Pure."""

from __future__ import annotations

import re

from opsctl.slurm.nodes import expand_nodes

#: A name that needs a label in front of it, and a name that looks like a node's.
ANY = r"[A-Za-z](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?"
NAME = r"(?=[A-Za-z0-9.-]{0,62}\d)[A-Za-z](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?"
ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}"
#: Names with a number that belong to no node.
_NO_NODE = re.compile(
    r"(?i)(?:cuda|device|cpu|npu|rank|task|step|epoch|iter|stage|layer|shard|part|group|fp|bf|float|int|uint|v|python|torch"
    r"|iteration|batch|block|bucket|expert|model|chunk|split|thread|checkpoint|ckpt|nccl|mlx|ib|eth|eno|ens|bond|hsn|local|seed|loss|process|proc|adam|zero|sha|utf|version|linux|ubuntu)[-_.]?[\d._-]+"
    r"|(?:(?:tp|pp|dp|cp|ep|sp|mp|vp)\d+[-_.]?)+|gpu[-_]?\d|(?:default|trainer|worker)\d+|localhost.*|slurmstepd-.*|linux-.*|cpython.*"
    r"|[abghlvt]b?h?\d{1,3}s?(?:-(?:sxm|pci|nvl|\d+g).*)?|mi\d{2,3}\w?|rtx.*|gtx.*|.*[-_](?:ranks?|gpus?)"
    r"|.*\.(?:py|sh|log|json|yaml|toml|txt|cc|cpp|cu|so)(?:\.\d+)?"
)
#: A name that belongs to a node in a list of nodes alone.
_GPU_NODE = re.compile(r"(?i)gpu[-_]?\d")
_FOLDED = re.compile(r"(?:[A-Za-z][A-Za-z0-9.-]{0,62}(?:\[\d[\d,-]*\][A-Za-z0-9.-]{0,62})?(?:,|(?![\w.,\[-])))+")
_NUMBER, _LETTER = re.compile(r"\d+"), re.compile(r"(?<=[a-z\d]-)[a-z]$")


def is_node(name: str) -> bool:
    """Return False for a name with a number that belongs to a device, a parallel group, a file or a version."""
    return _NO_NODE.fullmatch(name) is None


def looks_like_node(name: str) -> bool:
    """Return True for a name with a number that can be a node's."""
    return re.fullmatch(NAME, name) is not None and is_node(name)


def stem(name: str) -> str:
    """Return the part that the nodes of a cluster have in common: `n1`, `n2` -> `n0`; `x-a`, `x-b` -> `x-0`."""
    return _LETTER.sub("0", _NUMBER.sub("0", name.partition(".")[0]))


def names_of(text: str) -> list[str]:
    """Return the nodes that `text` begins with, unfolded."""
    if (folded := _FOLDED.match(text.strip(" \"'"))) is not None and "[" in folded[0]:
        return [name for name in _unfolded(folded[0]) if is_node(name) or _GPU_NODE.fullmatch(name)]
    found = []
    for word in re.split(r"[\s,;\"'()\[\]]+", text.strip(" \"'([")):
        name, _, rest = word.partition("=")
        if rest and not re.fullmatch(ADDRESS, rest):
            break
        name = re.sub(r":\d+$", "", name)
        if not re.fullmatch(NAME if not rest else ANY, name) or not (is_node(name) or _GPU_NODE.fullmatch(name)):
            break
        found.append(name)
    return list(dict.fromkeys(found))


def _unfolded(text: str) -> list[str]:
    from ClusterShell.NodeSet import NodeSetException

    try:
        return expand_nodes(text.strip(","))
    except NodeSetException:
        return []
