"""What the ranks of one attempt left in its folder, read tolerantly: a crash may have cut any of it short."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.attempts.events import Failure, RankPlace, failure, rank_place

#: Why the trainer left, by its first rank.
EXIT_REPORT = "exit.json"
STOP_REQUEST = "stop-request"
_ITERATION = re.compile(rb"iteration +(\d+)/ *\d+ \|")
#: How much of a node's output is searched for its last iteration.
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Evidence:
    """The rank map, every failure a launcher noted, the elastic error files, and why the trainer says it left."""

    ranks: tuple[RankPlace, ...] = ()
    failures: tuple[Failure, ...] = ()
    error_files: tuple[str, ...] = ()
    exit_reason: str | None = None
    exit_iteration: int | None = None
    stop_requested: bool = False  # by the job, or by a person
    logged_iteration: int | None = None  # the last one in the nodes' output


def read_evidence(folder: Path) -> Evidence:
    """Everything in an attempt's folder; empty when there is none."""
    reason, iteration = exit_note(folder)
    failures = tuple(filter(None, (failure(item) for item in _items(folder, "failure-*.json"))))
    return Evidence(
        ranks=tuple(sorted(filter(None, (rank_place(item) for item in _items(folder, "ranks-*.json"))), key=_rank)),
        failures=failures,
        error_files=_error_files(folder, failures),
        exit_reason=reason,
        exit_iteration=iteration,
        stop_requested=(folder / STOP_REQUEST).exists(),
        logged_iteration=_last_logged_iteration(folder),
    )


def exit_note(folder: Path) -> tuple[str | None, int | None]:
    """(why the trainer left, after which iteration), once it has said so."""
    note = _read(folder / EXIT_REPORT)
    reason, iteration = (note.get("reason"), note.get("iteration")) if isinstance(note, dict) else (None, None)
    return (
        reason if isinstance(reason, str) and reason else None,
        iteration if isinstance(iteration, int) else None,
    )


def set_aside(folder: Path) -> Path | None:
    """Rename what an earlier job of the same id left (a requeue, or a cluster whose ids started over), so that nothing
    of it, a stop request least of all, is taken for this one's. Returns its new place, None when there was nothing.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    for number in range(1, 1_000_000):
        place = folder.with_name(f"{folder.name}.{number}")
        if not place.exists():
            folder.rename(place)
            return place
    return None


def _rank(place: RankPlace) -> int:
    return place.rank


def _items(folder: Path, pattern: str) -> Iterator[dict[str, Any]]:
    """The records in the matching files, each of which holds one or a list of them."""
    for path in sorted(folder.glob(pattern)) if folder.is_dir() else []:
        value = _read(path)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield item


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _last_logged_iteration(folder: Path) -> int | None:
    """The highest iteration among the last lines of the nodes' output: only the node of the last rank prints them."""
    found = [
        int(match[1])
        for path in (folder.glob("*.out") if folder.is_dir() else [])
        for match in _ITERATION.finditer(_end_of(path))
    ]
    return max(found, default=None)


def _end_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def _error_files(folder: Path, failures: tuple[Failure, ...]) -> tuple[str, ...]:
    """Elastic error files kept under NODE/ here: those that failures name, and any other a rank left."""
    named = [item.error_file for item in failures if item.error_file]
    found = [str(path) for path in sorted(folder.glob("*/**/error.json"))] if folder.is_dir() else []
    return tuple(dict.fromkeys([*named, *found]))
