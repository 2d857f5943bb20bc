"""Names of nodes in a log, and prefixes that launchers add to a line: `name: [rank9]: text`. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from opsctl.diagnosis.triage.lines import SYSLOG_ENDS
from opsctl.slurm.nodes import expand_nodes

#: A name after a label, and a name that looks like a node's.
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
#: A name that is a node's only in a list of nodes.
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


#: Names of fields in JSON logs.
_HOSTS = ("host", "hostname", "node", "node_name", "nodename", "host_name", "machine", "pod_name", "pod")
_RANKS = ("rank", "global_rank", "process_index", "process_rank")
_TEXTS = ("message", "msg", "text", "log", "event")
_ERRORS = ("exc_info", "exception", "traceback", "stack_trace", "exc_text", "error", "err")
_TIMES = ("timestamp", "ts", "time", "asctime", "@timestamp")
#: Fields that can contain the fields above.
_INNER = ("extra", "fields", "context", "record", "kubernetes", "labels")
_LONGEST_JSON = 64 << 10
_LEVELS = ("WARN", "WARNING", "INFO", "DEBUG")
_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")
#: Fields without a node's name: times, numbers, brackets, levels.
_FIELDS = re.compile(
    r"(?:\d[\d:TZ.,/+-]*+(?=[\s|\]])|\[[^\[\]]{1,80}+\]:?|\([^()]{1,60}+\)|(?:DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b"
    r"|[\s|-])*+[\[(<]?"
)
#: The end of a name before a line's text, by its opening bracket; no name of a kernel or a process may follow.
_ENDS = {
    "[": re.compile(r"\]:?[ \t|-]*"),
    "(": re.compile(r"\):?[ \t|-]*"),
    "<": re.compile(r">:?[ \t|-]*"),
    "": re.compile(rf"(?![ \t]+{SYSLOG_ENDS})(?::(?=\s|\[)|>|[ \t]*\||(?=[ \t]))[ \t-]*"),
}
_LONGEST_FRONT, _MOST_WORDS, _LONGEST_REST = 160, 14, 120
_LINES_REMEMBERED = 2048
#: From this share of the lines on, names at one place are nodes without further evidence.
_MOST_LINES = 0.5
_DIGITS = re.compile(r"[\d.]+")

#: The position of a name in a line: its number among the words, and the characters before and after it.
Place = tuple[int, str, str]


@dataclass(frozen=True)
class Fronts:
    """The node names that precede a log's lines, and their positions in the line."""

    hosts: frozenset[str] = frozenset()
    places: frozenset[Place] = frozenset()


NO_FRONTS = Fronts()


def fronts_of(lines: Sequence[str]) -> Fronts:
    """Return the names of nodes that a launcher or a collector writes in front of `lines`.

    These are two or more names at the same place in front of most lines, or in front of lines with the same words:
    two loggers write different words, but two nodes write the same.
    """
    counts: dict[Place, Counter[str]] = defaultdict(Counter)
    twins: dict[tuple[Place, str], set[str]] = defaultdict(set)
    for line in lines:
        end = _FIELDS.match(line[:_LONGEST_FRONT])
        for place, word in _words(line):
            name = word[0]
            counts[place][name] += 1
            if end is not None and word.start() <= end.end() and name == name.lower():
                twins[place, _DIGITS.sub("", line[word.end() : word.end() + _LONGEST_REST])].add(name)
    alike: dict[Place, set[str]] = defaultdict(set)
    for (place, _), names in twins.items():
        alike[place] |= names if len(names) > 1 else set()
    hosts: set[str] = set()
    places: set[Place] = set()
    for place, count in counts.items():
        names = _nodes(
            place,
            {name: seen for name, seen in count.items() if seen > 1 or name in alike[place]},
            alike[place],
            len(lines),
        )
        hosts |= names
        places |= {place} if names else set()
    return Fronts(frozenset(hosts), frozenset(places))


def _words(line: str) -> Iterator[tuple[Place, re.Match[str]]]:
    """Return the words at the beginning of a line that can be a node's name by the characters around them."""
    for index, word in enumerate(islice(_WORD.finditer(line[:_LONGEST_FRONT]), _MOST_WORDS)):
        before, after = line[word.start() - 1 : word.start()] if word.start() else "", line[word.end() : word.end() + 1]
        if word[0][0].isalpha() and after and after in " :]|>)\t" and before in " [(<|\t":
            yield (index, before.strip(), after.strip()), word


def _nodes(place: Place, count: dict[str, int], alike: set[str], lines: int) -> set[str]:
    """Return the names at one place that are nodes'. count: those that recur; alike: those with the same words."""
    stems = Counter(stem(name) for name in count)
    is_marked = bool(place[1] or place[2])
    names = {
        name
        for name in count
        if looks_like_node(name) or (is_node(name) and stems[stem(name)] > 1 and stem(name) != name)
    }
    names = {name for name in names if is_marked or "-" in name or name in alike}
    share = sum(count[name] for name in names) / max(1, lines)
    if len(names) > 1 and (share >= _MOST_LINES or (len(names & alike) > 1 and len(names) == len(count))):
        return names
    others = {name for name in alike if name in count and is_node(name)}
    share = sum(count[name] for name in others) / max(1, lines)
    return others if len(others) > 1 and is_marked and share >= _MOST_LINES else set()


def usual_line(hosts: frozenset[str], places: Collection[Place] = ()) -> Callable[[str], str]:
    """Return a function that moves the name of a node, at one of `places` or in front, to `@name: text`."""

    @lru_cache(maxsize=_LINES_REMEMBERED)
    def usual(line: str) -> str:
        if line.startswith("{") and (text := _of_json(line)):
            return text
        if not hosts or hosts.isdisjoint(_WORD.findall(line[:_LONGEST_FRONT])):
            return line
        front = _FIELDS.match(line[:_LONGEST_FRONT])
        for place, word in _words(line):
            if word[0] in hosts and (place in places or (front is not None and word.start() <= front.end())):
                begin, bracket = word.start(), place[1] if place[1] in _ENDS else ""
                if end := _ENDS[bracket].match(line, word.end()):
                    return f"@{word[0]}: {line[: begin - len(bracket)]}{line[end.end() :]}"
                return line
        return line

    return usual


def _of_json(line: str) -> str:
    """Return the message of a JSON line; empty for other lines, and without a message."""
    try:
        found = json.loads(line) if len(line) <= _LONGEST_JSON else None
    except ValueError:
        return ""
    if not isinstance(found, dict):
        return ""
    inner = [found[name] for name in _INNER if isinstance(found.get(name), dict)]
    fields = {key.lower(): value for one in (*reversed(inner), found) for key, value in one.items()}
    text, error = _first(fields, _TEXTS), _first(fields, _ERRORS)
    text = next((part for part in (error, text) if part), "")
    if not text:
        return ""
    host, rank, at = _first(fields, _HOSTS), _first(fields, _RANKS), _first(fields, _TIMES)
    words = [f"{host}:" if host else "", f"[rank{rank}]:" if rank.isdecimal() else "", f"[{at}]" if "-" in at else ""]
    level = _first(fields, ("level", "levelname", "severity")).upper()
    words += [f"{level}:" if level in _LEVELS else ""]
    return " ".join([*filter(None, words), text.strip().splitlines()[-1].strip()])


def _first(fields: dict[str, Any], names: Sequence[str]) -> str:
    values = (fields.get(name) for name in names)
    return next((str(one) for one in values if isinstance(one, (str, int)) and str(one).strip()), "")
