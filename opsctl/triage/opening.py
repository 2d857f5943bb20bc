"""Read the beginning of a log for the job's nodes, tables of ranks, addresses and numbers of ranks. Pure.

A launcher, a framework or a user's script prints these before the first iteration, each in a form of its own. A form
here is a label ("nodes", "rank", "host") and the values next to it; a name without a label is a node only in a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from opsctl.slurm.nodelists import expand_nodes
from opsctl.triage.fronts import names_in_front

#: Of a log, how much is read for these.
OPENING_BYTES = 512 << 10
_LONGEST_LINE = 2048
_MOST_RANKS = 1 << 16
#: A name that only a label makes one, and one that looks like a node's.
_ANY = r"[A-Za-z](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?"
_NAME = r"(?=[A-Za-z0-9.-]{0,62}\d)[A-Za-z](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?"
#: Names with a number that are no node's.
_NO_NODE = re.compile(
    r"(?i)(?:cuda|device|cpu|npu|rank|task|step|epoch|iter|stage|layer|shard|part|group|fp|bf|float|int|uint|v|python|torch"
    r"|nccl|mlx|ib|eth|eno|ens|bond|hsn|local|seed|loss|process|proc|adam|zero|sha|utf|version|linux|ubuntu)[-_.]?[\d._-]+"
    r"|(?:(?:tp|pp|dp|cp|ep|sp|mp|vp)\d+[-_.]?)+|gpu[-_]?\d|localhost.*|linux-.*|cpython.*"
    r"|[abghlvt]b?h?\d{1,3}s?(?:-(?:sxm|pci|nvl|\d+g).*)?|mi\d{2,3}\w?|rtx.*|gtx.*|.*[-_](?:ranks?|gpus?)"
    r"|.*\.(?:py|sh|log|json|yaml|toml|txt|cc|cpp|cu|so)(?:\.\d+)?"
)
#: A name that is a node's in a list of nodes alone.
_GPU_NODE = re.compile(r"(?i)gpu[-_]?\d")
_RANKS = r"\[?(?P<ranks>\d{1,5}(?: ?(?:-|\.\.|to|,) ?\d{1,5})*)\]?"
_LABEL = r"(?:host(?:s|name)?|node(?:s|name)?|machine)\b[\"']?[ :=(\[\"']{1,4}"
_OF_RANK = (
    r"(?<!num )(?<!local)(?<!local[ _-])(?<!node[ _-])(?<!group[ _-])(?<!machine[ _-])\b"
    r"(?:global[ _-]?)?(?:rank|process|proc)s?(?:[ _]?(?:id|index))?[\"']?"
)
#: `Rank: 3, Local Rank: 1, Hostname: n1`, `rank 3 is on node n1`.
_RANK_THEN_LABEL = re.compile(
    rf"(?i){_OF_RANK}[ :=#\[]{{0,3}}{_RANKS}(?P<between>.{{0,80}}?)\b{_LABEL}(?P<host>{_ANY})"
)
#: `rank 3 on n1`, `ranks 0-7: n1`, `rank 3 -> n1`, `rank 3 (n1)`, `rank 7 of 16 running on n1`.
_RANK_THEN_NAME = re.compile(
    rf"(?i){_OF_RANK}[ :=#\[]{{0,3}}{_RANKS}(?: ?/ ?\d+| of \d+)?(?: is| running| runs| started| uses)?"
    rf"(?: on | at | in | ?->? ?| ?=> ?| ?\u2192 ?| ?@ ?| ?: ?| ?= ?| ?\()(?P<host>{_NAME})(?![\w:])"
)
#: `Hostname n1, pid 7, rank 3`, `host n1 process 5 of 32`, `initialized host n1 as rank 4`.
_LABEL_THEN_RANK = re.compile(
    rf"(?i)\b{_LABEL}(?P<host>{_ANY})\b(?P<between>.{{0,60}}?){_OF_RANK}[ :=#]{{1,3}}{_RANKS}"
)
#: `rank table: n1=0-3 n2=4-7`, `n1: [0, 1]`, `n1 ranks 0-7`, `n1: rank 3`.
_ROWS = re.compile(
    rf"(?P<host>{_NAME})[\"']?(?: ?[=:] ?\[?|(?::| ->| =>)? (?:global )?ranks?[ :=]{{1,2}})"
    rf"(?P<ranks>\d{{1,5}}(?:(?: ?[-,] ?| )\d{{1,5}})*)(?![\w.:])"
)
#: `node_rank 0 on n1`, `group_rank=1 host n2`.
_NODE_RANK = re.compile(
    rf"(?i)\b(?:node|machine|group)[ _-]?rank[\"']?[ :=]{{1,3}}(?P<index>\d{{1,4}})\b.{{0,40}}?"
    rf"(?:\b{_LABEL}|\bon |-> ?|@ ?)(?P<host>{_ANY})"
)
#: `The node n1 has joined round 0 of the rendezvous as rank 0`: the number is the node's.
_JOINED = re.compile(
    rf"(?i)\b(?:node|host|agent) (?P<host>{_ANY}) (?:has )?joined\b.{{0,120}}? rank[ :=]{{1,2}}(?P<index>\d{{1,4}})\b"
)
#: `n1 (0-3) n2 (4-7)`: ranges that follow each other from 0 on are those of ranks, with no word of them.
_RANGE = re.compile(rf"(?P<host>{_NAME})[\"']?[ :=(\[]{{1,3}}(?P<ranks>\d{{1,5}} ?(?:-|\.\.) ?\d{{1,5}})(?![\w.:-])")
#: `pods: w-1=n2`, `pod w-1 on node n2`, `Successfully assigned ns/w-1 to n2`: the node's name after another one.
_ALIAS = re.compile(
    rf"(?P<alias>{_NAME})[\"']?(?: ?= ?| ?-> ?| (?:is |runs |running |scheduled )?(?:on|to) (?:node |host )?)[\"']?"
    rf"(?P<host>{_NAME})"
)
#: What `srun -l hostname` prints.
_TASK_ROW = re.compile(rf"\s*(?P<task>\d{{1,5}}): (?P<host>{_NAME})\s*")
_LOCAL = re.compile(r"(?i)\blocal(?:[ _-]?rank)?[\"']?[ :=]{1,3}(?P<local_rank>\d{1,3})\b(?! ?of)")
_LIST = re.compile(
    r"(?i)(?:\b|_)(?:node[_ ]?list|node names|nodes|hosts|hostnames|host_?list|host names|machines|NODELIST)"
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
    r"[\"']?[ :=]{1,12}[\"']?(\d{1,3})\b"
)
_ALL_RANKS = re.compile(
    r"(?i)(?:\bworld[_ ]size|\bnum_processes|\bSLURM_NTASKS|\btotal ranks)[\"']?(?: is)?[ :=]{1,4}[\"']?(\d{1,5})\b"
)
_IN_FRONT = re.compile(rf"(?P<host>(?=[A-Za-z0-9]*-){_NAME}): (?=\S)")
_HOSTNAME = re.compile(rf"(?i)^\W*(?:\w+: )?(?:running on )?host(?:name)?[ :=]{{1,3}}(?P<host>{_NAME})(?![\w:])")
_HOW_MANY_NODES = re.compile(r"(?i)(?:\b|_)n(?:um)?[ _-]?nodes[\"']?[ :=]{1,4}[\"']?(\d{1,5})\b")
#: With more ranks a log that names one node leaves out others.
MOST_ON_ONE_NODE = 16
_CELL = re.compile(r"[A-Za-z0-9][\w.:/-]*")
_HOST_HEADS = ("host", "hostname", "node", "nodename", "node_name", "machine")
_WIDEST_TABLE = 12
#: From this share of the lines on, the names in front of them are nodes'.
_COLUMN = 0.5


@dataclass(frozen=True)
class Told:
    """A rank or a task, and the node that one line gives it."""

    node: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    of: int = 0  # how many ranks the communicator has whose rank it is; 0 for a rank of the job
    address: str = ""  # of the node


@dataclass(frozen=True)
class Opening:
    """The nodes and ranks that the beginning of a log names."""

    nodes: tuple[str, ...] = ()  # a list of them, in its order
    hosts: frozenset[str] = frozenset()  # all names of nodes that stand there
    column: frozenset[str] = frozenset()  # those in front of most lines
    told: tuple[Told, ...] = ()  # tables of ranks
    addresses: dict[str, str] = field(default_factory=dict)  # address -> name
    ranks_per_node: int = 0  # as it says; 0 where it does not
    ranks: int = 0  # all of the job's


NO_OPENING = Opening()


def read_opening(lines: Sequence[str]) -> Opening:
    """Return the nodes and ranks that `lines`, the first of a log, name."""
    lines = [line[:_LONGEST_LINE] for line in lines if line.strip()]
    told, addresses = list(_tables(lines)), {**dict(_addresses(lines)), **dict(_aliases(lines))}
    nodes, column = _nodes(lines), _column(lines)
    nodes = nodes or (_only_host(lines) if not told and not column else ())
    aliases = {name for name in addresses if not name[:1].isdigit()}
    in_front = {match["host"] for line in lines if (match := _IN_FRONT.match(line)) and _is_node(match["host"])}
    hosts = {*in_front, *nodes, *_running(lines), *(one.node for one in told), *addresses.values(), *aliases, *column}
    return Opening(
        nodes=nodes,
        hosts=frozenset(hosts),
        column=frozenset(column),
        told=tuple(told),
        addresses=addresses,
        ranks_per_node=_number(_PER_NODE, lines),
        ranks=_number(_ALL_RANKS, lines),
    )


def _only_host(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the one name that lines like `Hostname: n1` give, where nothing says that there are more nodes."""
    names = {match["host"] for line in lines if (match := _HOSTNAME.search(line)) is not None}
    numbers = [int(match[1]) for line in lines for match in _HOW_MANY_NODES.finditer(line)]
    is_one = len(names) == 1 and max(numbers, default=1) == 1 and _number(_ALL_RANKS, lines) <= MOST_ON_ONE_NODE
    return tuple(names) if is_one else ()


def _is_node(name: str) -> bool:
    return _NO_NODE.fullmatch(name) is None


def _number(pattern: re.Pattern[str], lines: Iterable[str]) -> int:
    """Return the one number that is given; 0 where there is none or they differ."""
    found = {int(match[1]) for line in lines for match in pattern.finditer(line)}
    return found.pop() if len(found) == 1 else 0


def _tables(lines: Sequence[str]) -> Iterator[Told]:
    yield from _columns(lines)
    tasks = [row for row in map(_TASK_ROW.fullmatch, lines) if row and _is_node(row["host"])]
    yield from (Told(row["host"], task=int(row["task"])) for row in tasks if len(tasks) > 1)
    for line in lines:
        low = line.lower()
        yield from _ranges(line)
        if ("rank" not in low and "proc" not in low) or _JOINED.search(line):
            continue
        labelled = [*_RANK_THEN_LABEL.finditer(line), *_LABEL_THEN_RANK.finditer(line)]
        named = [row for row in _RANK_THEN_NAME.finditer(line) if _is_node(row["host"])] if not labelled else []
        rows = [row for row in _ROWS.finditer(line) if _is_node(row["host"])] if "rank" in low else []
        if len(rows) > 1 or (rows and not labelled and not named and "rank" in rows[0][0].lower()):
            labelled, named = [], rows
        local = _LOCAL.search(line) if len(labelled) + len(named) == 1 else None
        for row in (*labelled, *named):
            ranks = list(_numbers(row["ranks"]))
            for rank in ranks:
                is_one = local is not None and len(ranks) == 1
                yield Told(row["host"], rank, int(local["local_rank"]) if local and is_one else None)


def _ranges(line: str) -> Iterator[Told]:
    """Read hosts with ranges of ranks, two or more, where each range begins after the one before it, the first at 0."""
    rows = [(row["host"], list(_numbers(row["ranks"]))) for row in _RANGE.finditer(line) if _is_node(row["host"])]
    following = [rank for _, ranks in rows for rank in ranks]
    if len(rows) > 1 and following == list(range(len(following))):
        yield from (Told(host, rank) for host, ranks in rows for rank in ranks)


def _columns(lines: Sequence[str]) -> Iterator[Told]:
    """Read the rows below a line that names a column of ranks and one of hosts."""
    rank_at = host_at = width = -1
    for line in lines:
        words = _CELL.findall(line)
        heads = [word.lower() for word in words]
        host = next((at for at, word in enumerate(heads) if word in _HOST_HEADS), -1)
        rank = next((at for at, word in enumerate(heads) if word in ("rank", "global_rank", "global-rank")), -1)
        if host >= 0 and rank >= 0 and len(words) <= _WIDEST_TABLE:
            rank_at, host_at, width = rank, host, len(words)
        elif words and len(words) == width:
            if words[rank_at].isdecimal() and re.fullmatch(_NAME, words[host_at]) and len(words[rank_at]) < 6:
                yield Told(words[host_at], int(words[rank_at]))
        elif words:
            width = -1


def _numbers(text: str) -> Iterator[int]:
    """Return the numbers of a list: 0-3,8 -> 0, 1, 2, 3, 8."""
    for part in re.split(r",|(?<=\d) (?=\d)", text):
        ends = [int(number) for number in re.findall(r"\d+", part)]
        if ends and ends[-1] - ends[0] < _MOST_RANKS:
            yield from range(ends[0], ends[-1] + 1)


def _nodes(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the longest list of nodes."""
    longest = max(_names_alone(lines), _running(lines), _numbered(lines), key=len)
    for index, line in enumerate(lines):
        if (match := _LIST.search(line)) is not None:
            named = _names_of(match["list"]) if match["list"] else _names_alone(lines[index + 1 :], at_once=True)
            longest = max(longest, named, key=len)
    return tuple(longest)


def _numbered(lines: Iterable[str]) -> list[str]:
    """Return the nodes by their number among the nodes, where each number has one name and none is missing."""
    found: dict[int, set[str]] = {}
    for line in lines:
        for match in (*_NODE_RANK.finditer(line), *_JOINED.finditer(line)) if "rank" in line.lower() else ():
            found.setdefault(int(match["index"]), set()).add(match["host"])
    is_whole = sorted(found) == list(range(len(found))) and all(len(names) == 1 for names in found.values())
    return [found[index].copy().pop() for index in sorted(found)] if is_whole else []


def _running(lines: Iterable[str]) -> list[str]:
    """Return the nodes that lines like `running on n1` name."""
    found = (match["list"] for line in lines if (match := _RUNS_ON.search(line)) is not None)
    return list(dict.fromkeys(name for text in found for name in _names_of(text)))


def _names_of(text: str) -> list[str]:
    """Return the nodes that `text` begins with, unfolded."""
    if (folded := _FOLDED.match(text.strip(" \"'"))) is not None and "[" in folded[0]:
        return [name for name in _unfolded(folded[0]) if _is_node(name) or _GPU_NODE.fullmatch(name)]
    found = []
    for word in re.split(r"[\s,;\"'()\[\]]+", text.strip(" \"'([")):
        name, _, rest = word.partition("=")
        if rest and not re.fullmatch(_ADDRESS, rest):
            break
        name = re.sub(r":\d+$", "", name)
        if not re.fullmatch(_NAME if not rest else _ANY, name) or not (_is_node(name) or _GPU_NODE.fullmatch(name)):
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
    """Return names that each have a line of their own, two or more in a row. at_once: they begin on the first line."""
    found: list[str] = []
    for line in lines:
        name = line.partition(" slots=")[0].strip()
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


def _aliases(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Return (name, node) of pods that have a name of their own."""
    for line in lines:
        if "pod" in line.lower() or "assigned" in line:
            rows = (row for row in _ALIAS.finditer(line) if row["alias"] != row["host"])
            yield from ((row["alias"], row["host"]) for row in rows if _is_node(row["alias"]) and _is_node(row["host"]))


def _column(lines: Sequence[str]) -> set[str]:
    """Return the names, two or more, in front of most lines."""
    return names_in_front(lines, lambda name: bool(re.fullmatch(_NAME, name)) and _is_node(name), _COLUMN)
