"""What torch's flight recorder wrote of one rank: how far it had come in every process group.

A dump is a pickle of plain values (NCCL's, on a time-out or on demand) or the same as JSON. Pickles are read by an
unpickler that makes nothing but those: whatever names a class or a function is refused.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one rank is in one process group. Collectives of a group are numbered from 1, alike on all its ranks."""

    rank: int
    group: str  # torch's name of it, the same on all its ranks
    about: str = ""  # what the program calls it; empty where it does not
    enqueued: int = 0  # the last that the program has asked for
    completed: int = 0  # the last that is done, as far as was noticed
    operation: str = ""  # of the last that was asked for: `all_reduce`


def read_dump(data: bytes, rank: int) -> list[GroupProgress]:
    """What a dump of `rank` says of its process groups, in order of their names. Raises ValueError for no dump."""
    dump = _plain(data)
    entries = dump.get("entries")
    status = dump.get("pg_status")
    if not isinstance(entries, list) and not isinstance(status, Mapping):
        raise ValueError("no flight recorder's dump: it has neither entries nor pg_status")
    found: dict[str, GroupProgress] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and not entry.get("is_p2p"):
            _add(found, entry, rank)
    for name, said in status.items() if isinstance(status, Mapping) else ():
        if isinstance(said, Mapping):
            known = found.get(str(name)) or GroupProgress(rank=rank, group=str(name))
            found[known.group] = msgspec.structs.replace(
                known,
                enqueued=max(known.enqueued, _number(said.get("last_enqueued_collective"))),
                completed=max(known.completed, _number(said.get("last_completed_collective"))),
            )
    return [found[name] for name in sorted(found)]


def _add(found: dict[str, GroupProgress], entry: Mapping[str, Any], rank: int) -> None:
    """Take one recorded operation into what is known of its group."""
    names = entry.get("process_group")
    name, about = (*map(str, names), "")[:2] if isinstance(names, list | tuple) and names else ("", "")
    known = found.get(name) or GroupProgress(rank=rank, group=name, about="" if about == "undefined" else about)
    number = _number(entry.get("collective_seq_id"))
    if number >= known.enqueued:
        operation = str(entry.get("profiling_name") or "").rpartition(":")[2]
        known = msgspec.structs.replace(known, enqueued=number, operation=operation)
    if entry.get("state") == "completed":
        known = msgspec.structs.replace(known, completed=max(known.completed, number))
    found[name] = known


def _plain(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data) if data[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # a pickle that was cut short raises whatever its next byte happens to mean
        raise ValueError(f"no flight recorder's dump: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError("no flight recorder's dump: it is no dictionary")
    return value


class _PlainUnpickler(pickle.Unpickler):
    """Makes numbers, texts, lists and dictionaries; no object of any class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise ValueError("it refers to something outside")


def _number(value: Any) -> int:
    try:
        return max(0, int(value))
    except (TypeError, ValueError, OverflowError):
        return 0
