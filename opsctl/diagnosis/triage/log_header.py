"""Read the beginning of a log for the job's nodes, tables of ranks, addresses and numbers of ranks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from opsctl.diagnosis.triage.line_prefixes import (
    ADDRESS,
    ANY,
    NAME,
    NO_FRONTS,
    Fronts,
    fronts_of,
    is_node,
    looks_like_node,
    names_of,
    stem,
    usual_line,
)

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


_MOST_RANKS = 1 << 16
_SEVERAL = r"\d{1,5}(?: ?(?:-|\.\.|to|,) ?\d{1,5})*"
#: `rank 3`, `Global rank: 3`, `world_rank=3`, `process 3`; not the number of a node, or of a rank within a node.
_RANK = re.compile(
    r"(?i)(?<!num )(?<!local)(?<!local[ _-])(?<!node[ _-])(?<!group[ _-])(?<!machine[ _-])\b"
    r"(?:(?:global|world|mpi)[ _-]?)?(?:rank|process|proc)s?(?:[ _]?(?:id|index))?[\"']?"
    rf"[ :=#\[]{{0,3}}(?P<ranks>{_SEVERAL})\b\]?"
)
_LABELLED = re.compile(rf"(?i)\b(?:{LABEL}(?P<host>{ANY})|(?:node_?)?ip[=: ]{{1,2}}(?P<address>{ADDRESS}))")
_FARTHEST = 80
#: `rank 3 on n1`, `rank 3 -> n1`, `rank 3 (n1)`, `rank 7 of 16 running on n1`, `Rank 3 Group 0 Pid 71 on n1`.
_ADJACENT = re.compile(
    r"(?: ?/ ?\d+| of \d+)?(?: +[A-Za-z]+ +\d+){0,4}(?: is| running| runs| started| uses)?"
    rf"(?: (?:on|at|in) +(?:node )?| ?(?:->?|=>?|\u2192|@|:) ?| ?\()(?P<host>{NAME})(?![\w:])"
)
#: `n1=0-3`, `n1: [0, 1]`, `n1 ranks 0-7`, `n1: rank 3`, `n1 (0-3)`.
_ROW = re.compile(
    rf"(?<![\w.-])(?P<host>{NAME})[\"']?(?: ?[=:] ?\[?|(?::| ->| =>)? (?:global )?ranks?[ :=]{{1,2}}| ?[(\[])"
    r"(?P<ranks>\d{1,5}(?:(?: ?[-,] ?|\.\.| )\d{1,5})*)(?![\w.:])"
)
#: A row of what `srun -l hostname` prints.
_TASK = re.compile(rf"\s*(?P<task>\d{{1,5}}): (?P<host>{NAME})\s*")
_LOCAL = re.compile(r"(?i)\blocal(?:[ _-]?rank)?[\"']?[ :=]{1,3}(?P<local_rank>\d{1,3})\b(?! ?of)")
_CELL = re.compile(r"[A-Za-z0-9][\w.:/-]*")
_HOST_HEADS = ("host", "hostname", "node", "nodename", "node_name", "machine")
_RANK_HEADS = ("rank", "global_rank", "global-rank")
_WIDEST_TABLE = 12


@dataclass(frozen=True)
class Placement:
    """A rank or a task, and the node that one line gives it."""

    node: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    of: int = 0  # the size of the rank's communicator; 0 for a rank of the job
    address: str = ""  # of the node


def tables(lines: Sequence[str]) -> Iterator[Placement]:
    """Return each rank and task with its node. lines: with the nodes' names in front."""
    tasks = [row for row in map(_TASK.fullmatch, lines) if row and is_node(row["host"])]
    yield from (Placement(row["host"], task=int(row["task"])) for row in tasks if len(tasks) > 1)
    for line in lines:
        if not JOINED.search(line):
            rows = list(_rows(line))
            yield from rows or _ranks_with_names(line)


def _rows(line: str) -> Iterator[Placement]:
    """Read names with ranks, two or more. Without the word `rank`, their ranks have to follow each other from 0 on."""
    rows = [(row, list(numbers(row["ranks"]))) for row in _ROW.finditer(line) if is_node(row["host"])]
    following = [rank for _, ranks in rows for rank in ranks]
    is_table = len(rows) > 1 and (following == list(range(len(following))) or "rank" in line.lower())
    if is_table or (len(rows) == 1 and "rank" in rows[0][0][0].lower()):
        yield from (Placement(row["host"], rank) for row, ranks in rows for rank in ranks)


def _ranks_with_names(line: str) -> Iterator[Placement]:
    """Read each rank with the labelled name around it, else with the name next to it."""
    found = list(_RANK.finditer(line))
    local = _LOCAL.search(line) if len(found) == 1 else None
    ends = [*(match.start() for match in found[1:]), len(line)]
    for match, end in zip(found, ends, strict=False):
        begin = match.start() if len(found) > 1 else max(0, match.start() - _FARTHEST)
        labelled = list(_LABELLED.finditer(line, begin, min(end, match.end() + _FARTHEST)))
        next_to = _ADJACENT.match(line, match.end())
        host = (labelled[0]["host"] or labelled[0]["address"]) if labelled else ""
        if not host and next_to and is_node(next_to["host"]):
            host = next_to["host"]
        ranks = list(numbers(match["ranks"])) if host else []
        for rank in ranks:
            yield Placement(host, rank, int(local["local_rank"]) if local and len(ranks) == 1 else None)


def columns(lines: Sequence[str]) -> Iterator[Placement]:
    """Read the rows below a line that names a column of ranks and one of hosts."""
    rank_at = host_at = width = -1
    for line in lines:
        words = _CELL.findall(line)
        heads = [word.lower() for word in words]
        host = next((at for at, word in enumerate(heads) if word in _HOST_HEADS), -1)
        rank = next((at for at, word in enumerate(heads) if word in _RANK_HEADS), -1)
        if host >= 0 and rank >= 0 and len(words) <= _WIDEST_TABLE:
            rank_at, host_at, width = rank, host, len(words)
        elif words and len(words) == width:
            if words[rank_at].isdecimal() and re.fullmatch(NAME, words[host_at]) and len(words[rank_at]) < 6:
                yield Placement(words[host_at], int(words[rank_at]))
        elif words:
            width = -1


def numbers(text: str) -> Iterator[int]:
    """Return the numbers of a list: 0-3,8 -> 0, 1, 2, 3, 8."""
    for part in re.split(r",|(?<=\d) (?=\d)", text):
        ends = [int(number) for number in re.findall(r"\d+", part)]
        if ends and ends[-1] - ends[0] < _MOST_RANKS:
            yield from range(ends[0], ends[-1] + 1)


#: The bytes of a log that are read for its opening.
OPENING_BYTES = 512 << 10
_LONGEST_LINE = 2048
#: `pods: w-1=n2`, `pod w-1 on node n2`, `Successfully assigned ns/w-1 to n2`: a pod's name and its node.
_ALIAS = re.compile(
    rf"(?P<alias>{NAME})[\"']?(?: ?= ?| ?-> ?| (?:is |runs |running |scheduled )?(?:on|to) (?:node |host )?)[\"']?"
    rf"(?P<host>{NAME})"
)
_NAMED_ADDRESS = re.compile(
    rf"\b(?P<host>{ANY})[\"']?[ \t=:(\[\"']{{1,4}}(?:ip[ =:]{{1,2}})?(?P<address>{ADDRESS})(?![\d.]*[<:])"
)
_ADDRESS_NAMED = re.compile(rf"(?<![\d.=])\b(?P<address>{ADDRESS})[ \t=]{{1,3}}(?P<host>{NAME})\s*$")
_PER_NODE = re.compile(
    r"(?i)(?:(?:n_?proc(?:esses)?|n?tasks|n_?gpus|gpus|ranks|devices)[_ -]{1,2}per[_ -]node|\bslots)"
    r"[\"']?[ :=]{1,12}[\"']?(\d{1,3})\b"
)
_ALL_RANKS = re.compile(
    r"(?i)(?:\bworld[_ ]size|\bnum_processes|\bSLURM_NTASKS|\btotal ranks)[\"']?(?: is)?[ :=]{1,4}[\"']?(\d{1,5})\b"
)
_IN_FRONT = re.compile(rf"(?P<host>(?=[A-Za-z0-9]*-){NAME}): (?=\S)")
#: With more ranks, a log that names one node leaves out other nodes.
MOST_ON_ONE_NODE = 16


@dataclass(frozen=True)
class Opening:
    """The nodes and ranks that the beginning of a log names."""

    nodes: tuple[str, ...] = ()  # a list of them, in its order
    hosts: frozenset[str] = frozenset()  # all names of nodes
    fronts: Fronts = NO_FRONTS
    placements: tuple[Placement, ...] = ()  # tables of ranks
    addresses: dict[str, str] = field(default_factory=dict)  # address -> name
    ranks_per_node: int = 0  # as the log gives it; 0 if it does not
    ranks: int = 0  # all of the job's


NO_OPENING = Opening()


def read_opening(lines: Sequence[str]) -> Opening:
    """Return the nodes and ranks that `lines`, the first of a log, name."""
    lines = [line[:_LONGEST_LINE] for line in lines if line.strip()]
    fronts = fronts_of(lines)
    listed, in_columns = longest_list(lines), columns(lines)
    lines = [*map(usual_line(fronts.hosts, fronts.places), lines)]
    placements, addresses = [*in_columns, *tables(lines)], {**dict(_addresses(lines)), **dict(_aliases(lines))}
    nodes, ranks = max(numbered(lines), listed, key=len), _number(_ALL_RANKS, lines)
    nodes = nodes or (only_host(lines, ranks, MOST_ON_ONE_NODE) if not placements and not fronts.hosts else ())
    aliases = {name for name in addresses if not name[:1].isdigit()}
    in_front = {match["host"] for line in lines if (match := _IN_FRONT.match(line)) and is_node(match["host"])}
    of_tables = (one.node for one in placements)
    return Opening(
        nodes=nodes,
        hosts=frozenset({*in_front, *nodes, *running(lines), *of_tables, *addresses.values(), *aliases, *fronts.hosts}),
        fronts=fronts,
        placements=tuple(placements),
        addresses=addresses,
        ranks_per_node=_number(_PER_NODE, lines),
        ranks=ranks,
    )


def _number(pattern: re.Pattern[str], lines: Iterable[str]) -> int:
    """Return the one number that is given; 0 where there is none or they differ."""
    found = {int(match[1]) for line in lines for match in pattern.finditer(line)}
    return found.pop() if len(found) == 1 else 0


def _addresses(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if line.count(".") < 3:
            continue
        for match in (*_NAMED_ADDRESS.finditer(line), *_ADDRESS_NAMED.finditer(line)):
            name = match["host"]
            if re.search(r"\d|-", name) and is_node(name) and "." not in name:
                yield match["address"], name


def _aliases(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Return (name, node) of pods that have their own names."""
    for line in lines:
        if "pod" in line.lower() or "assigned" in line:
            rows = (row for row in _ALIAS.finditer(line) if row["alias"] != row["host"])
            yield from ((row["alias"], row["host"]) for row in rows if is_node(row["alias"]) and is_node(row["host"]))
