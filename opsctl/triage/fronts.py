"""Write what stands in front of a line, or around it, as launchers do: `name: [rank9]: text`. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from opsctl.triage.lines import STAMP

#: What a program that logs in JSON calls its parts.
_HOSTS = ("host", "hostname", "node", "node_name", "nodename", "host_name", "machine")
_RANKS = ("rank", "global_rank", "process_index", "process_rank")
_TEXTS = ("message", "msg", "text", "log", "event")
_ERRORS = ("exc_info", "exception", "traceback", "stack_trace", "exc_text", "error", "err")
_TIMES = ("timestamp", "ts", "time", "asctime", "@timestamp")
#: Within one of these they may stand one level further down.
_INNER = ("extra", "fields", "context", "record", "kubernetes", "labels")
_LONGEST_JSON = 64 << 10
_FRONT = re.compile(
    rf"(?:\[?{STAMP}\]?:?[ \t]+)?"
    r"(?:\[(?P<in>[A-Za-z][\w.-]{0,62})\]:?|(?P<bare>[A-Za-z][\w.-]{0,62})(?P<mark> *\||:)?)(?=\s)"
)
_LEVELS = ("WARN", "WARNING", "INFO", "DEBUG")


def names_in_front(lines: Sequence[str], is_node: Callable[[str], bool], share: float) -> set[str]:
    """Return the names, two or more, in front of that share of the lines; without a mark behind it one has a `-`."""
    count: Counter[str] = Counter()
    for line in lines:
        if front := _FRONT.match(line):
            name = front["in"] or front["bare"]
            if front["in"] or front["mark"] or "-" in name:
                count[name] += 1
    names = {name: number for name, number in count.items() if number > 1 and is_node(name)}
    return set(names) if len(names) > 1 and sum(names.values()) >= share * len(lines) else set()


def usual_line(column: Collection[str]) -> Callable[[str], str]:
    """Return a function that writes a line as launchers do. column: the names in front of most lines."""
    names = "|".join(map(re.escape, sorted(column, key=len, reverse=True)))
    front = (
        re.compile(rf"(?P<at>\[?{STAMP}\]?:?[ \t]+)?\[?(?P<name>{names})(?:\]?(?: *\||:) ?|\]?[ \t]+)")
        if names
        else None
    )

    def usual(line: str) -> str:
        if line.startswith("{") and (said := _of_json(line)):
            return said
        match = front.match(line) if front else None
        return f"{match['name']}: {match['at'] or ''}{line[match.end() :]}" if match else line

    return usual


def _of_json(line: str) -> str:
    """Return what a line of JSON says; empty where it is none, or has no text."""
    try:
        found = json.loads(line) if len(line) <= _LONGEST_JSON else None
    except ValueError:
        return ""
    if not isinstance(found, dict):
        return ""
    inner = [found[name] for name in _INNER if isinstance(found.get(name), dict)]
    said = {key.lower(): value for one in (*reversed(inner), found) for key, value in one.items()}
    text, error = _first(said, _TEXTS), _first(said, _ERRORS)
    text = next((part for part in (error, text) if part), "")
    if not text:
        return ""
    host, rank, at = _first(said, _HOSTS), _first(said, _RANKS), _first(said, _TIMES)
    words = [f"{host}:" if host else "", f"[rank{rank}]:" if rank.isdecimal() else "", f"[{at}]" if "-" in at else ""]
    level = _first(said, ("level", "levelname", "severity")).upper()
    words += [f"{level}:" if level in _LEVELS else ""]
    return " ".join([*filter(None, words), text.strip().splitlines()[-1].strip()])


def _first(said: dict[str, Any], names: Sequence[str]) -> str:
    values = (said.get(name) for name in names)
    return next((str(one) for one in values if isinstance(one, (str, int)) and str(one).strip()), "")
