"""Read which rank is on which node from tables at the beginning of a log. Pure.

A launcher, a framework or a user's script prints these in a form of its own. Every form has one of three shapes: rows
of a name with ranks, a rank with a labelled or adjacent name, and columns under a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opsctl.diagnosis.triage.host_names import ADDRESS, ANY, NAME, is_node
from opsctl.diagnosis.triage.node_lists import JOINED, LABEL

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
class Told:
    """A rank or a task, and the node that one line gives it."""

    node: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    of: int = 0  # the number of ranks of the communicator whose rank it is; 0 for a rank of the job
    address: str = ""  # of the node


def tables(lines: Sequence[str]) -> Iterator[Told]:
    """Return each rank and task with its node. lines: with the nodes' names in front."""
    tasks = [row for row in map(_TASK.fullmatch, lines) if row and is_node(row["host"])]
    yield from (Told(row["host"], task=int(row["task"])) for row in tasks if len(tasks) > 1)
    for line in lines:
        if not JOINED.search(line):
            rows = list(_rows(line))
            yield from rows or _ranks_with_names(line)


def _rows(line: str) -> Iterator[Told]:
    """Read names with ranks, two or more. Without the word `rank`, their ranks have to follow each other from 0 on."""
    rows = [(row, list(numbers(row["ranks"]))) for row in _ROW.finditer(line) if is_node(row["host"])]
    following = [rank for _, ranks in rows for rank in ranks]
    is_table = len(rows) > 1 and (following == list(range(len(following))) or "rank" in line.lower())
    if is_table or (len(rows) == 1 and "rank" in rows[0][0][0].lower()):
        yield from (Told(row["host"], rank) for row, ranks in rows for rank in ranks)


def _ranks_with_names(line: str) -> Iterator[Told]:
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
            yield Told(host, rank, int(local["local_rank"]) if local and len(ranks) == 1 else None)


def columns(lines: Sequence[str]) -> Iterator[Told]:
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
                yield Told(words[host_at], int(words[rank_at]))
        elif words:
            width = -1


def numbers(text: str) -> Iterator[int]:
    """Return the numbers of a list: 0-3,8 -> 0, 1, 2, 3, 8."""
    for part in re.split(r",|(?<=\d) (?=\d)", text):
        ends = [int(number) for number in re.findall(r"\d+", part)]
        if ends and ends[-1] - ends[0] < _MOST_RANKS:
            yield from range(ends[0], ends[-1] + 1)
