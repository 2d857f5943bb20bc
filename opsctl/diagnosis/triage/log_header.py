"""Read the beginning of a log for the job's nodes, tables of ranks, addresses and numbers of ranks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from opsctl.diagnosis.triage.host_names import ADDRESS, ANY, NAME, is_node
from opsctl.diagnosis.triage.line_prefixes import NO_FRONTS, Fronts, fronts_of, usual_line
from opsctl.diagnosis.triage.node_lists import longest_list, numbered, only_host, running
from opsctl.diagnosis.triage.rank_tables import Told, columns, tables

#: Of a log, how much is read for these.
OPENING_BYTES = 512 << 10
_LONGEST_LINE = 2048
#: `pods: w-1=n2`, `pod w-1 on node n2`, `Successfully assigned ns/w-1 to n2`: the node's name after another one.
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
    told: tuple[Told, ...] = ()  # tables of ranks
    addresses: dict[str, str] = field(default_factory=dict)  # address -> name
    ranks_per_node: int = 0  # as the log states it; 0 where it does not
    ranks: int = 0  # all of the job's


NO_OPENING = Opening()


def read_opening(lines: Sequence[str]) -> Opening:
    """Return the nodes and ranks that `lines`, the first of a log, name."""
    lines = [line[:_LONGEST_LINE] for line in lines if line.strip()]
    fronts = fronts_of(lines)
    listed, in_columns = longest_list(lines), columns(lines)
    lines = [*map(usual_line(fronts.hosts, fronts.places), lines)]
    told, addresses = [*in_columns, *tables(lines)], {**dict(_addresses(lines)), **dict(_aliases(lines))}
    nodes, ranks = max(numbered(lines), listed, key=len), _number(_ALL_RANKS, lines)
    nodes = nodes or (only_host(lines, ranks, MOST_ON_ONE_NODE) if not told and not fronts.hosts else ())
    aliases = {name for name in addresses if not name[:1].isdigit()}
    in_front = {match["host"] for line in lines if (match := _IN_FRONT.match(line)) and is_node(match["host"])}
    of_tables = (one.node for one in told)
    return Opening(
        nodes=nodes,
        hosts=frozenset({*in_front, *nodes, *running(lines), *of_tables, *addresses.values(), *aliases, *fronts.hosts}),
        fronts=fronts,
        told=tuple(told),
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
    """Return (name, node) of pods that have a name of their own."""
    for line in lines:
        if "pod" in line.lower() or "assigned" in line:
            rows = (row for row in _ALIAS.finditer(line) if row["alias"] != row["host"])
            yield from ((row["alias"], row["host"]) for row in rows if is_node(row["alias"]) and is_node(row["host"]))
