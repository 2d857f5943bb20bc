"""What the beginning of a log tells of the job: its nodes, tables of ranks, addresses, numbers of ranks. Pure.

A launcher, a framework or a user's script prints these before the first iteration, each in a form of its own. A form
here is a label ("nodes", "rank", "host") and the values next to it; a name without a label is a node only in a column.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from opsctl.slurm.nodelists import expand_nodes

#: Of a log, how much is read for these.
OPENING_BYTES = 512 << 10
_LONGEST_LINE = 2048
_MOST_RANKS = 1 << 16
#: A name that only a label makes one, and one that looks like a node's.
_ANY = r"[A-Za-z](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?"
_NAME = r"(?=[A-Za-z0-9.-]{0,62}\d)[A-Za-z](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?"
#: Names with a number that are no node's.
_NO_NODE = re.compile(
    r"(?i)(?:cuda|device|cpu|npu|rank|task|step|epoch|iter|stage|layer|shard|part|group|fp|bf|float|int|uint|tp|pp|dp|cp|ep"
    r"|v|python|torch|nccl|mlx|ib|eth|eno|ens|bond|hsn|local|seed|loss|worker|process|proc|adam|zero|sha|utf)[-_.]?[\d.]+"
    r"|gpu[-_]?\d|.*\.(?:py|sh|log|json|yaml|toml|txt|cc|cpp|cu|so)(?:\.\d+)?|localhost.*|\S*[-_](?:rank|gpu)?s?"
)
_RANKS = r"\[?(?P<ranks>\d{1,5}(?: ?(?:-|\.\.|to|,) ?\d{1,5})*)\]?"
_LABEL = r"(?:host(?:s|name)?|node(?:s|name)?|machine|hosts? name)"
#: `rank 3 on n1`, `ranks 0-7: n1`, `rank 3 -> n1`, `Rank: 3, Local Rank: 1, Hostname: n1`.
_RANK_FIRST = re.compile(
    rf"(?i)(?<!local)(?<!local[ _-])\b(?:global[ _-]?)?(?:rank|process|proc)s?(?:[ _]?id)?[\"']?[ :=#]{{0,3}}{_RANKS}"
    rf"(?:/\d+| of \d+| / \w+ \d+)?[)\]]?(?P<between>.{{0,60}}?)"
    rf"(?P<label>\b{_LABEL}\b[\"']?[ :=(\[\"']{{1,4}}|(?: on| at| in|->|=>|\u2192|@|:|=)[ \"']{{1,3}})(?P<host>{_ANY})"
)
#: `Hostname n1, pid 7, rank 3`, `host n1 process 5 of 32`, `initialized host n1 as rank 4`, `n1 ranks 0-7`.
_HOST_FIRST = re.compile(
    rf"(?i)\b{_LABEL}\b[\"']?[ :=\"']{{1,3}}(?P<host>{_ANY})\b(?P<between>[^\n]{{0,60}}?)(?<!local)(?<!local[ _-])"
    rf"\b(?:global[ _-]?)?(?:rank|process)s?[\"']?[ :=#]{{1,3}}{_RANKS}"
)
#: `rank table: n1=0-3 n2=4-7`, `n1: [0, 1]`, `n1 ranks 0-7`.
_ROWS = re.compile(
    rf"(?P<host>{_NAME})[\"']?(?: ?[=:] ?\[?|:? ranks? )(?P<ranks>\d{{1,5}}(?:(?: ?[-,] ?| )\d{{1,5}})*)(?![\w.:])"
)
_LOCAL = re.compile(r"(?i)\blocal(?:[ _-]?rank)?[\"']?[ :=]{1,3}(?P<local_rank>\d{1,3})\b(?! ?of)")
_LIST = re.compile(
    r"(?i)(?:\b|_)(?:node_?list|node names|nodes|hosts|hostnames|host_?list|host names|machines|NODELIST)"
    r"[\"']? ?(?:are|is|:|=|\(|\[|on|->)? ?(?:list)?[ :=(]{0,2}(?P<list>\S.*)?$"
)
_RUNS_ON = re.compile(
    r"(?i)\b(?:runs?|running|started|launched|job \S+) on (?:nodes? )?(?P<list>[A-Za-z][A-Za-z0-9.,\[\] -]*)"
)
_FOLDED = re.compile(r"(?:[A-Za-z][A-Za-z0-9.-]{0,62}(?:\[\d[\d,-]*\][A-Za-z0-9.-]{0,62})?(?:,|(?![\w.,\[-])))+")
_ADDRESS = r"(?P<address>\d{1,3}(?:\.\d{1,3}){3})"
_NAMED_ADDRESS = re.compile(rf"\b(?P<host>{_ANY})[\"']?[ \t=:(\[\"']{{1,4}}(?:ip[ =:]{{1,2}})?{_ADDRESS}(?![\d.]*[<:])")
_ADDRESS_NAMED = re.compile(rf"(?<![\d.=])\b{_ADDRESS}[ \t=]{{1,3}}(?P<host>{_NAME})\s*$")
_PER_NODE = re.compile(
    r"(?i)(?:n_?proc(?:esses)?|n?tasks|n_?gpus|gpus|ranks|devices)[_ -]{1,2}per[_ -]node"
    r"[\"']?[ :=]{1,4}[\"']?(\d{1,3})\b"
)
_ALL_RANKS = re.compile(
    r"(?i)(?:\bworld[_ ]size|\bnum_processes|\bSLURM_NTASKS|\btotal ranks)[\"']?(?: is)?[ :=]{1,4}[\"']?(\d{1,5})\b"
)
#: From this share of the lines on, the names in front of them are nodes'.
_COLUMN = 0.5


@dataclass(frozen=True)
class Told:
    """What one line tells of a place."""

    node: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    of: int = 0  # how many ranks the communicator has whose rank it is; 0 for a rank of the job
    address: str = ""  # of the node


@dataclass(frozen=True)
class Opening:
    """What the beginning of a log tells of where it runs."""

    nodes: tuple[str, ...] = ()  # a list of them, in its order
    hosts: frozenset[str] = frozenset()  # all names of nodes that stand there
    told: tuple[Told, ...] = ()  # tables of ranks
    addresses: dict[str, str] = field(default_factory=dict)  # address -> name
    ranks_per_node: int = 0  # as it says; 0 where it does not
    ranks: int = 0  # all of the job's


NO_OPENING = Opening()


def read_opening(lines: Sequence[str]) -> Opening:
    """What `lines`, the first of a log, tell."""
    lines = [line[:_LONGEST_LINE] for line in lines if line.strip()]
    told, addresses = list(_tables(lines)), dict(_addresses(lines))
    nodes = _nodes(lines)
    hosts = {*nodes, *_running(lines), *(one.node for one in told), *addresses.values(), *_column(lines)}
    return Opening(
        nodes=nodes,
        hosts=frozenset(hosts),
        told=tuple(told),
        addresses=addresses,
        ranks_per_node=_number(_PER_NODE, lines),
        ranks=_number(_ALL_RANKS, lines),
    )


def _is_node(name: str) -> bool:
    return _NO_NODE.fullmatch(name) is None


def _number(pattern: re.Pattern[str], lines: Iterable[str]) -> int:
    """The one number that is given; 0 where there is none or they differ."""
    found = {int(match[1]) for line in lines for match in pattern.finditer(line)}
    return found.pop() if len(found) == 1 else 0


def _tables(lines: Iterable[str]) -> Iterator[Told]:
    for line in lines:
        low = line.lower()
        if "rank" not in low and "process" not in low and "proc" not in low:
            continue
        for found in _HOST_FIRST.finditer(line):
            yield from _told(found, line)
        match = _RANK_FIRST.search(line)
        if match and (re.fullmatch(_NAME, match["host"]) or re.search("(?i)host|node|machine", match["label"])):
            yield from _told(match, line)
        if "rank" in low:
            rows = list(_ROWS.finditer(line))
            if len(rows) > 1 or (rows and "ranks" in low):
                for row in rows:
                    yield from _told(row, "")


def _told(match: re.Match[str], line: str) -> Iterator[Told]:
    if not _is_node(match["host"]):
        return
    ranks = list(_numbers(match["ranks"]))
    local = _LOCAL.search(line) if len(ranks) == 1 else None
    for rank in ranks:
        yield Told(match["host"], rank, int(local["local_rank"]) if local else None)


def _numbers(text: str) -> Iterator[int]:
    """0-3,8 -> 0, 1, 2, 3, 8."""
    for part in re.split(r",|(?<=\d) (?=\d)", text):
        ends = [int(number) for number in re.findall(r"\d+", part)]
        if ends and ends[-1] - ends[0] < _MOST_RANKS:
            yield from range(ends[0], ends[-1] + 1)


def _nodes(lines: Sequence[str]) -> tuple[str, ...]:
    """The longest list of nodes."""
    longest = max(_names_alone(lines), _running(lines), key=len)
    for index, line in enumerate(lines):
        if (match := _LIST.search(line)) is not None:
            named = _names_of(match["list"]) if match["list"] else _names_alone(lines[index + 1 :], at_once=True)
            longest = max(longest, named, key=len)
    return tuple(longest)


def _running(lines: Iterable[str]) -> list[str]:
    """The nodes that one or more lines say it runs on, each of its own."""
    found = (match["list"] for line in lines if (match := _RUNS_ON.search(line)) is not None)
    return list(dict.fromkeys(name for text in found for name in _names_of(text)))


def _names_of(text: str) -> list[str]:
    """The nodes that `text` begins with, unfolded."""
    if (folded := _FOLDED.match(text.strip(" \"'"))) is not None and "[" in folded[0]:
        return [name for name in _unfolded(folded[0]) if _is_node(name)]
    found = []
    for word in re.split(r"[\s,;\"'()\[\]]+", text.strip(" \"'([")):
        name, _, rest = word.partition("=")
        if rest and not re.fullmatch(_ADDRESS, rest):
            break
        name = re.sub(r":\d+$", "", name)
        if not re.fullmatch(_NAME if not rest else _ANY, name) or not _is_node(name):
            break
        found.append(name)
    return list(dict.fromkeys(found))


def _unfolded(text: str) -> list[str]:
    from ClusterShell.NodeSet import NodeSetException

    try:
        return expand_nodes(text.strip(","))
    except NodeSetException:
        return []


def _names_alone(lines: Sequence[str], at_once: bool = False) -> list[str]:
    """Names each on a line of its own, two or more after each other; at_once: that the first line begins."""
    found: list[str] = []
    for line in lines:
        name = line.strip()
        if re.fullmatch(_NAME, name) and _is_node(name) and (not found or _stem(name) == _stem(found[0])):
            found.append(name)
        elif len(found) > 1 or at_once:
            break
        else:
            found = []
    return list(dict.fromkeys(found)) if len(found) > 1 or at_once else []


def _stem(name: str) -> str:
    return re.sub(r"\d+", "0", name.partition(".")[0])


def _addresses(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if line.count(".") < 3:
            continue
        for match in (*_NAMED_ADDRESS.finditer(line), *_ADDRESS_NAMED.finditer(line)):
            name = match["host"]
            if re.search(r"\d|-", name) and _is_node(name) and "." not in name:
                yield match["address"], name


def _column(lines: Sequence[str]) -> set[str]:
    """Names that stand in front of most lines."""
    first = Counter(line.split(maxsplit=1)[0].rstrip(":") for line in lines)
    names = {
        name: count
        for name, count in first.items()
        if count > 1 and "-" in name and re.fullmatch(_NAME, name) and _is_node(name)
    }
    return set(names) if sum(names.values()) >= _COLUMN * len(lines) else set()
