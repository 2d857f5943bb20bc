"""Map ranks and tasks to nodes, from all lines of a log: libraries, launchers, srun. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from opsctl.diagnosis.triage.elastic import tasks_of_srun
from opsctl.diagnosis.triage.findings import Finding
from opsctl.diagnosis.triage.lines import read_line
from opsctl.diagnosis.triage.log_header import MOST_ON_ONE_NODE, NO_OPENING, Opening, Placement
from trainer.formats.attempt.attempt_records import Failure, RankPlace

#: Texts in lines that contain places but no failure.
PLACE_MARKS = (
    b"global_rank_mapping",
    b"process rank ",
    b"RUNNING AT ",
    b"Init COMPLETE",
    b"NCCL INFO Bootstrap",
    b"NCCL INFO NET/",
)
_HOST = r"[A-Za-z0-9][A-Za-z0-9._-]*"
#: NCCL numbers the ranks of a communicator: the ranks of the largest are the job's.
_NCCL_RANK = re.compile(r"NCCL INFO .*\brank (?P<rank>\d+) nranks (?P<of>\d+)")
_NCCL_ADDRESS = re.compile(r"NCCL INFO (?:Bootstrap|NET/\w+) ?: Using .{0,300}?[^\s:<>]+:(?P<address>\d+(?:\.\d+){3})<")
_MPI_RANK = re.compile(
    rf"process rank (?P<rank>\d+) .*\bon node (?P<node>{_HOST})"
    rf"|RANK (?P<rank_2>\d+) PID \d+ RUNNING AT (?P<node_2>{_HOST})"
)
_DEEPSPEED = re.compile(rf"'(?P<node>{_HOST})': \[(?P<ranks>[\d, ]+)\]")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: The suffix of a name for an interface of the host.
_OF_AN_INTERFACE = re.compile(r"(?:-|_)?(?:ib|hsn|opa|roce|bond|eth|eno|hs|mlx5_)\d*$")
_DIGITS = re.compile(r"\d+")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
#: Usual numbers of GPUs per node.
_RANKS_PER_NODE = (1, 2, 4, 6, 8, 16)


def placements_in(line: str, reference: datetime) -> list[Placement]:
    """Return the places that the line contains; none if it does not connect two of node, rank and task."""
    node, tasks = tasks_of_srun(line)
    if node:
        return [Placement(node, task=task) for task in tasks]
    if "global_rank_mapping" in line:
        return [
            Placement(match["node"], rank=int(rank), local_rank=local_rank)
            for match in _DEEPSPEED.finditer(line)
            for local_rank, rank in enumerate(match["ranks"].split(","))
            if rank.strip() and match["node"] != "localhost"
        ]
    parsed = read_line(line, reference)
    if mpi := _MPI_RANK.search(line):
        return [Placement(mpi["node"] or mpi["node_2"], rank=int(mpi["rank"] or mpi["rank_2"]))]
    if parsed.is_kernels:
        return []
    if (own := _NCCL_ADDRESS.search(parsed.text)) and parsed.node:
        return [Placement(parsed.node, parsed.rank, parsed.local_rank, parsed.task, address=own["address"])]
    if nccl := _NCCL_RANK.search(parsed.text):
        return [Placement(parsed.node, int(nccl["rank"]), parsed.local_rank, parsed.task, int(nccl["of"]))]
    if parsed.rank is not None or parsed.task is not None:
        return [Placement(parsed.node, parsed.rank, parsed.local_rank, parsed.task)]
    return []


@dataclass(frozen=True)
class Places:
    """The known locations of ranks and tasks."""

    nodes: tuple[str, ...] = ()  # all of the job, in Slurm's order
    node_of_rank: Mapping[int, str] = field(default_factory=dict)
    node_of_task: Mapping[int, str] = field(default_factory=dict)
    rank_of: Mapping[tuple[str, int], int] = field(default_factory=dict)  # node and local rank -> rank
    first_rank: Mapping[str, int] = field(default_factory=dict)  # of a node
    tasks_are_ranks: bool = False
    ranks_per_node: int = 0  # if every node has the same number, in Slurm's order; 0 if unknown
    launchers: int = 0  # number of srun's tasks seen
    hosts: frozenset[str] = frozenset()  # all known names of nodes
    addresses: Mapping[str, str] = field(default_factory=dict)  # address -> its node

    def node(self, rank: int | None, task: int | None) -> str:
        """Return the node of the rank, else of srun's task; without both, the only node."""
        if rank is not None and (found := self.node_of_rank.get(rank)):
            return found
        if rank is not None and self.ranks_per_node and rank // self.ranks_per_node < len(self.nodes):
            return self.nodes[rank // self.ranks_per_node]
        if task is not None and (found := self.node_of_task.get(task)):
            return found
        if rank is not None and self.tasks_are_ranks and (found := self.node_of_task.get(rank)):
            return found
        return self.nodes[0] if len(self.nodes) == 1 else ""

    def rank(self, node: str, local_rank: int | None) -> int | None:
        """Return the rank of a node's local rank, if it is known or can be derived."""
        if not node or local_rank is None:
            return None
        if (found := self.rank_of.get((node, local_rank))) is not None:
            return found
        if node in self.first_rank:
            return self.first_rank[node] + local_rank
        if self.ranks_per_node and node in self.nodes and local_rank < self.ranks_per_node:
            return self.nodes.index(node) * self.ranks_per_node + local_rank
        return local_rank if self.nodes == (node,) else None

    def name(self, node: str) -> str:
        """Return the node's usual name for any of its names or addresses."""
        return usual_name(self.addresses.get(node, node), self.nodes, self.hosts)

    def named_in(self, line: str) -> str:
        """Return the one node of several that the line names anywhere."""
        named = {self.name(word.strip(".")) for word in _WORD.findall(line)} & self.hosts
        return named.pop() if len(named) == 1 and len(self.hosts) > 1 else ""

    def of_ranks(self) -> tuple[RankPlace, ...]:
        """Return every rank whose node is known."""
        local_rank_of = {rank: local_rank for (_, local_rank), rank in self.rank_of.items()}
        of_tasks = self.node_of_task if self.tasks_are_ranks else {}
        in_order = {rank: self.node(rank, None) for rank in range(self.ranks_per_node * len(self.nodes))}
        known = {**in_order, **of_tasks, **self.node_of_rank}
        return tuple(RankPlace(rank, node, "", local_rank_of.get(rank)) for rank, node in sorted(known.items()))


def learn(
    placements: Iterable[Placement],
    failures: Iterable[Failure],
    ranks: Sequence[RankPlace],
    nodes: Sequence[str],
    opening: Opening = NO_OPENING,
) -> Places:
    """Combine all lines into one map.

    ranks: the job's own record, which takes precedence over lines. nodes: all nodes of the job in Slurm's order; if
    empty, the nodes of the opening.
    """
    placements = [*placements, *opening.placements]
    hosts = opening.hosts | {one.node for one in placements if one.node}
    nodes = tuple(nodes) or (opening.nodes if len(opening.nodes) > 1 or hosts == set(opening.nodes) else ())
    addresses = {**opening.addresses, **{one.address: one.node for one in placements if one.address}}
    addresses.update(_addresses_of_ranks(placements))

    def named(one: Placement) -> Placement:
        return replace(one, node=usual_name(addresses.get(one.node, one.node), nodes, hosts))

    placements = [named(one) for one in placements]
    largest = max((one.of for one in placements), default=0)
    placements = [one if not one.of or one.of == largest else replace(one, rank=None) for one in placements]
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    task_votes: dict[int, Counter[str]] = defaultdict(Counter)
    rank_of: dict[tuple[str, int], int] = {}
    for failure in failures:
        if failure.node and failure.rank >= 0:
            placements.append(named(Placement(failure.node, failure.rank, failure.local_rank)))
    for one in placements:
        if one.node and one.rank is not None:
            votes[one.rank][one.node] += 1
            if one.local_rank is not None:
                rank_of.setdefault((one.node, one.local_rank), one.rank)
        if one.node and one.task is not None:
            task_votes[one.task][one.node] += 1
    node_of_rank = {rank: of.most_common(1)[0][0] for rank, of in votes.items()}
    for node, first in _first_ranks(rank_of).items():
        beyond = 1 + max(rank for (one_node, _), rank in rank_of.items() if one_node == node)
        node_of_rank = {**dict.fromkeys(range(first, beyond), node), **node_of_rank}
    node_of_rank.update({place.rank: place.node for place in ranks if place.node})
    rank_of.update({(one.node, one.local_rank): one.rank for one in ranks if one.node and one.local_rank is not None})
    tasks = {one.task for one in placements if one.task is not None}
    if (
        nodes == opening.nodes
        and len(nodes) == 1
        and max((one.rank or 0 for one in placements), default=0) >= MOST_ON_ONE_NODE
    ):
        nodes = ()
    node_of_task = {task: of.most_common(1)[0][0] for task, of in task_votes.items()}
    if max(tasks, default=-1) < len(nodes):
        node_of_task = {**dict(enumerate(nodes)), **node_of_task}
    same = _tasks_are_ranks(placements, node_of_task, tasks, nodes or sorted({one.node for one in opening.placements}))
    heard = {one.rank for one in placements if one.rank is not None} | (tasks if same else set())
    known = {**node_of_task, **node_of_rank} if same else node_of_rank
    return Places(
        nodes=tuple(nodes),
        node_of_rank=node_of_rank,
        node_of_task=node_of_task,
        rank_of=rank_of,
        first_rank=_first_ranks(rank_of),
        tasks_are_ranks=same,
        launchers=len(tasks),
        ranks_per_node=_stated(opening, heard, known, nodes) or _ranks_per_node(placements, heard, known, nodes, same),
        hosts=hosts | {*nodes},
        addresses=addresses,
    )


def _addresses_of_ranks(placements: Iterable[Placement]) -> dict[str, str]:
    """Return address -> name, if lines about a rank give its node by address and by a single name."""
    found: dict[int, set[str]] = defaultdict(set)
    for one in placements:
        if one.rank is not None and one.node and not one.of:
            found[one.rank].add(one.node)
    pairs: dict[str, set[str]] = defaultdict(set)
    for all_names in found.values():
        names = {name for name in all_names if not _ADDRESS.fullmatch(name)}
        for address in all_names - names:
            pairs[address] |= names
    return {address: next(iter(names)) for address, names in pairs.items() if len(names) == 1}


def usual_name(node: str, nodes: Sequence[str], hosts: Collection[str] = ()) -> str:
    """Return the name that the list of nodes has, else the shortest in the log: hosts add domains and interfaces."""
    if node in nodes:
        return node
    short = node.partition(".")[0]
    for one in (short, _OF_AN_INTERFACE.sub("", short)):
        if one in nodes or (one in hosts and one != node):
            return one
    if "." in node and not _ADDRESS.fullmatch(node) and any(_is_like(short, one) for one in hosts):
        return short
    long = [name for name in nodes if name.partition(".")[0] == node]
    return long[0] if len(long) == 1 else node


def _is_like(short: str, other: str) -> bool:
    """Return True where both names differ in their digits alone: the other nodes have no domain either."""
    return short != other and _DIGITS.sub("0", short) == _DIGITS.sub("0", other)


def _tasks_are_ranks(
    placements: Sequence[Placement], node_of_task: Mapping[int, str], tasks: set[int], nodes: Sequence[str]
) -> bool:
    """Return True if srun started a task for each rank, instead of one launcher per node."""
    pairs = {(one.task, one.rank) for one in placements if one.task is not None and one.rank is not None}
    if pairs:
        return all(task == rank for task, rank in pairs) and max(task or 0 for task, _ in pairs) > 0
    several = max(Counter(node_of_task.values()).values(), default=0) > 1
    return several or 0 < len(nodes) <= max(tasks, default=-1)


def _first_ranks(rank_of: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Return node -> its first rank, if all lines about the node agree."""
    found: dict[str, set[int]] = defaultdict(set)
    for (node, local_rank), rank in rank_of.items():
        found[node].add(rank - local_rank)
    return {node: firsts.pop() for node, firsts in found.items() if len(firsts) == 1 and min(firsts) >= 0}


def _stated(opening: Opening, heard: set[int], known: Mapping[int, str], nodes: Sequence[str]) -> int:
    """Return the ranks per node that the log gives, if all known places agree; else 0."""
    number = opening.ranks_per_node
    if not number and nodes and opening.ranks % len(nodes) == 0:
        number = opening.ranks // len(nodes)
    if not number or max(heard | set(known), default=0) // number >= len(nodes):
        return 0
    return number if all(nodes[rank // number] == node for rank, node in known.items()) else 0


def _ranks_per_node(
    placements: Sequence[Placement],
    heard: set[int],
    known: Mapping[int, str],
    nodes: Sequence[str],
    tasks_are_ranks: bool,
) -> int:
    """Return the only number that fits all that is known, else a power of two that fills the nodes; else 0."""
    highest = max(heard | set(known), default=0)
    pairs = {(one.task, one.rank) for one in placements if one.task is not None and one.rank is not None}
    local = {(one.rank, one.local_rank) for one in placements if one.rank is not None and one.local_rank is not None}
    fitting = [
        number
        for number in _RANKS_PER_NODE
        if highest // number < len(nodes)
        and (tasks_are_ranks or all(rank // number == task for task, rank in pairs if rank is not None))
        and all(nodes[rank // number] == node for rank, node in known.items())
        and all(rank % number == local_rank for rank, local_rank in local)
    ]
    if highest > 0 and len(fitting) == 1 and (known or pairs or local):
        return fitting[0]
    full = [number for number in fitting if number * len(nodes) == highest + 1]
    return full[0] if full and len(nodes) > 1 and full[0] & (full[0] - 1) == 0 else 0


def with_places(findings: Iterable[Finding], places: Places, known: Mapping[tuple[int, str], str]) -> list[Finding]:
    """Fill in nodes and ranks of findings. known: (local rank, line) -> the only node with it in its own output."""
    return [_with_place(one, places, known) for one in findings]


def _with_place(one: Finding, places: Places, known: Mapping[tuple[int, str], str]) -> Finding:
    peer = places.name(one.peer)
    one = replace(one, peer=peer if peer in places.hosts else "")
    node = places.name(one.node)
    if not one.rule.placed:
        return replace(one, node=node)
    rank = one.rank
    if rank is None and places.tasks_are_ranks:
        rank = one.task
    if not node and (rank is None or rank not in places.node_of_rank) and one.local_rank is not None:
        node = known.get((one.local_rank, one.text), "")
    node = node or places.node(rank, one.task)
    if not node and rank is None and one.task is None and not one.peer:
        node = places.named_in(one.text)
    return replace(one, node=node, rank=rank if rank is not None else places.rank(node, one.local_rank))
