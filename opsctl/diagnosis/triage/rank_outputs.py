"""What ranks printed themselves, below an attempt's folder: findings, and whose lines they are."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from opsctl.core.files.trusted import open_file
from opsctl.diagnosis.triage.findings import Finding
from opsctl.diagnosis.triage.log_part import Read, take
from opsctl.diagnosis.triage.rules import Rules
from opsctl.diagnosis.triage.scan import last_progress, scan

_MOST_FILES, _OF_EACH_BYTES = 4000, 8 << 20
#: Ranks' own output, and their launchers' copies of it, under the attempt's folder.
_RANK_FILES = ("*.out", "*.log", "*.err", "*.txt")


def rank_outputs(
    root: Path, folder: Path, rules: Rules, ends_at: float, unread: list[str]
) -> tuple[list[Finding], dict[tuple[int, str], str]]:
    """(findings in ranks' own output, each line's local rank and text -> the one node that said it)."""
    found: list[Finding] = []
    said: dict[tuple[int, str], set[str]] = {}
    for path in itertools.islice(_outputs(folder), _MOST_FILES):
        if time.monotonic() > ends_at:
            unread.append(f"{folder}: not all ranks' own output was read")
            break
        node, local_rank = _whose(folder, path)
        read = Read()
        try:
            with os.fdopen(open_file(root, path), "rb") as file:
                end = os.fstat(file.fileno()).st_size
                begin = max(0, end - _OF_EACH_BYTES)
                hits = scan(file.fileno(), begin, end, rules, ends_at).hits
                progress, _ = last_progress(file.fileno(), begin, end)
                stamp = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
                take(file.fileno(), hits, str(path.relative_to(folder)), rules, stamp, progress, ends_at, read)
        except OSError as error:
            unread.append(f"{path}: {error.strerror or error}")
            continue
        for one in read.findings:
            placed = replace(one, node=one.node or node)
            placed = replace(placed, local_rank=local_rank) if placed.local_rank is None else placed
            found.append(replace(placed, order=2**62 + one.order))  # after what has a place among all lines
            if placed.local_rank is not None:
                for text in (one.text, f"[default{placed.local_rank}]:{one.text}"):
                    said.setdefault((placed.local_rank, text), set()).add(node)
    return found, {key: nodes.pop() for key, nodes in said.items() if len(nodes) == 1}


def _outputs(folder: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(at, name)
            if any(path.match(pattern) for pattern in _RANK_FILES):
                yield path


def _whose(folder: Path, path: Path) -> tuple[str, int | None]:
    """(node, local rank) of NODE.out, or of NODE/.../LOCAL_RANK/stderr.log."""
    parts = path.relative_to(folder).parts
    if len(parts) == 1:
        return path.stem, None
    return parts[0], int(parts[-2]) if parts[-2].isdecimal() else None
