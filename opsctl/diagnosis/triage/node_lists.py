"""Read lists of nodes at the beginning of a log: Slurm's, a host file, one name a line, nodes by their number. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from opsctl.diagnosis.triage.host_names import ANY, NAME, looks_like_node, names_of, stem

LABEL = r"(?:host(?:s|name)?|node(?:s|name)?|machine)\b[\"']?[ :=(\[\"']{1,4}"
_LIST = re.compile(
    r"(?i)(?:\b|_)(?:node[_ ]?list|node names|nodes_array|nodes|hosts|hostnames|host_?list|host names|machines|workers)"
    r"[\"']? ?(?:are|is|:|=|\(|\[|on|->)? ?(?:list)?[ :=(]{0,2}(?P<list>\S.*)?$"
)
_RUNS_ON = re.compile(
    r"(?i)\b(?:runs?|running|started|launched|job \S+) on (?:nodes? )?(?P<list>[A-Za-z][A-Za-z0-9.,\[\] -]*)"
)
#: `node_rank 0 on n1`, `group_rank=1 host n2`, `n1: NODE_RANK=0`.
_NODE_RANK = re.compile(r"(?i)\b(?:node|machine|group)[ _-]?rank[\"']?[ :=]{1,3}(?P<index>\d{1,4})\b")
_BEHIND = re.compile(rf"(?i).{{0,40}}?(?:\b{LABEL}|\bon |-> ?|@ ?)(?P<host>{ANY})")
_FRONT = re.compile(rf"@?(?P<host>{ANY}): ")
#: `The node n1 has joined round 0 of the rendezvous as rank 0`: the number is the node's.
JOINED = re.compile(
    rf"(?i)\b(?:node|host|agent) (?P<host>{ANY}) (?:has )?joined\b.{{0,120}}? rank[ :=]{{1,2}}(?P<index>\d{{1,4}})\b"
)
_HOSTNAME = re.compile(rf"(?i)^\W*(?:\w+: )?(?:running on )?host(?:name)?[ :=]{{1,3}}(?P<host>{NAME})(?![\w:])")
_HOW_MANY_NODES = re.compile(r"(?i)(?:\b|_)n(?:um)?[ _-]?nodes[\"']?[ :=]{1,4}[\"']?(\d{1,5})\b")


def longest_list(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the longest list of nodes in `lines`, in its order."""
    longest = max(_names_alone(lines), running(lines), key=len)
    for index, line in enumerate(lines):
        if (match := _LIST.search(line)) is not None:
            named = names_of(match["list"]) if match["list"] else _names_alone(lines[index + 1 :], at_once=True)
            longest = max(longest, named, key=len)
    return tuple(longest)


def running(lines: Iterable[str]) -> list[str]:
    """Return the nodes that lines like `running on n1` name."""
    found = (match["list"] for line in lines if (match := _RUNS_ON.search(line)) is not None)
    return list(dict.fromkeys(name for text in found for name in names_of(text)))


def only_host(lines: Sequence[str], ranks: int, most_ranks: int) -> tuple[str, ...]:
    """Return the name that lines like `Hostname: n1` give, if it is the only one and the log mentions no more nodes."""
    names = {match["host"] for line in lines if (match := _HOSTNAME.search(line)) is not None}
    numbers = [int(match[1]) for line in lines for match in _HOW_MANY_NODES.finditer(line)]
    return tuple(names) if len(names) == 1 and max(numbers, default=1) == 1 and ranks <= most_ranks else ()


def numbered(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the nodes by their number among the nodes, where each number has one name and none is missing."""
    found: dict[int, set[str]] = {}
    for line in lines:
        low = line.lower()
        if "rank" not in low:
            continue
        for match in JOINED.finditer(line):
            found.setdefault(int(match["index"]), set()).add(match["host"])
        number = _NODE_RANK.search(line)
        host = (_BEHIND.match(line, number.end()) or _FRONT.match(line)) if number else None
        if number and host:
            found.setdefault(int(number["index"]), set()).add(host["host"])
    is_whole = sorted(found) == list(range(len(found))) and all(len(names) == 1 for names in found.values())
    return tuple(found[index].copy().pop() for index in sorted(found)) if is_whole else ()


def _names_alone(lines: Sequence[str], at_once: bool = False) -> list[str]:
    """Return names that each have a line of their own, two or more in a row. at_once: they begin on the first line."""
    found: list[str] = []
    for line in lines:
        name = line.partition(" slots=")[0].strip()
        if looks_like_node(name) and (not found or stem(name) == stem(found[0])):
            found.append(name)
        elif len(found) > 1 or at_once:
            break
        else:
            found = []
    return list(dict.fromkeys(found)) if len(found) > 1 or at_once else []
