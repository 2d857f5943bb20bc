"""Read the evidence of a failed attempt within a time limit: log, output of ranks, error files, launchers' notes."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import read_text
from opsctl.core.files.trusted import open_file
from opsctl.core.timestamps import now
from opsctl.diagnosis.hangs.grouping import grouped, recorded
from opsctl.diagnosis.hangs.summary import SILENT_STACKS, read_written
from opsctl.diagnosis.triage.findings import Facts, Finding, SlurmEnd, words_of_failures
from opsctl.diagnosis.triage.log_part import LogPart, Read, read_part, share_of, take
from opsctl.diagnosis.triage.rank_locations import Places, learn, with_places
from opsctl.diagnosis.triage.rules import Rules
from opsctl.diagnosis.triage.scan import last_progress, scan
from opsctl.run.attempts.verdict import StackGroup
from opsctl.run.logs.line_text import is_hole
from opsctl.run.state.attempt_folder import node_clocks, noted_failures, rank_map
from trainer.formats.attempt.attempt_records import Failure
from trainer.formats.attempt.error_file import read_error_file

_STEP_BYTES = 8 << 20
_OVERLAP_BYTES = 4096
#: In the form that `logs.attempt_lines.write_attempt_start` writes.
_START = re.compile(rb"^START TIME: \S+ attempt (\d+), job \S+ \((\d+)[,)]", re.MULTILINE)


def part_of_attempt(root: Path, log: Path, number: int, job_id: int, seconds: float) -> LogPart | None:
    """Return the attempt's part of `log`; None if its start line is not found in time. Raises OSError."""
    ends_at = time.monotonic() + seconds
    fd = open_file(root, log)
    try:
        end = upper = os.fstat(fd).st_size
        while upper > 0 and time.monotonic() < ends_at:
            lower = max(0, upper - _STEP_BYTES)
            if lower and is_hole(fd, lower - 1, upper + _OVERLAP_BYTES):
                upper = lower
                continue
            # Start one byte earlier, so that a line that begins at `lower` is found. Offset 0 always begins a line.
            before = os.pread(fd, 1, lower - 1) if lower else b"\n"
            data = before + os.pread(fd, upper - lower + _OVERLAP_BYTES, lower)
            for match in reversed(list(_START.finditer(data))) if b"START TIME: " in data else ():
                at = lower + match.start() - 1
                if at >= upper:
                    continue  # the step before this one had it
                if (int(match[1]), int(match[2])) == (number, job_id):
                    return LogPart(log, at, end, root)
                end = at
            upper = lower
        return None
    finally:
        os.close(fd)


_MOST_FILES, _OF_EACH_BYTES = 4000, 8 << 20
#: Files with output of ranks, and their launchers' copies, in the attempt's folder.
_RANK_FILES = ("*.out", "*.log", "*.err", "*.txt")


def rank_outputs(
    root: Path, folder: Path, rules: Rules, ends_at: float, unread: list[str]
) -> tuple[list[Finding], dict[tuple[int, str], str]]:
    """Return (findings in the ranks' own output, (local rank, text) -> the only node with that line)."""
    found: list[Finding] = []
    nodes_of: dict[tuple[int, str], set[str]] = {}
    for path in itertools.islice(_outputs(folder), _MOST_FILES):
        if time.monotonic() > ends_at:
            unread.append(f"{folder}: not all output of ranks was read")
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
            found.append(replace(placed, order=2**62 + one.order))  # after all lines with a position in the log
            if placed.local_rank is not None:
                for text in (one.text, f"[default{placed.local_rank}]:{one.text}"):
                    nodes_of.setdefault((placed.local_rank, text), set()).add(node)
    return found, {key: nodes.pop() for key, nodes in nodes_of.items() if len(nodes) == 1}


def _outputs(folder: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(at, name)
            if any(path.match(pattern) for pattern in _RANK_FILES):
                yield path


def _whose(folder: Path, path: Path) -> tuple[str, int | None]:
    """Return (node, local rank) of NODE.out, or of NODE/.../LOCAL_RANK/stderr.log."""
    parts = path.relative_to(folder).parts
    if len(parts) == 1:
        return path.stem, None
    return parts[0], int(parts[-2]) if parts[-2].isdecimal() else None


#: The share of an attempt's time for its part of the log; the rest is for the output of ranks.
_LOG_SHARE = 0.7


def read_log(part: LogPart, rules: Rules, seconds: float) -> Facts:
    """Return the facts of one log. Raises OpsctlError if it cannot be read."""
    ends_at = time.monotonic() + seconds
    try:
        read = read_part(part, rules, ends_at)
    except OSError as error:
        raise OpsctlError(f"cannot read {part.path}: {error.strerror or error}") from None
    places = learn(read.placements, read.failures, (), (), read.opening)
    nodes = _nodes_named(read, [*places.nodes, *(one.node for one in read.findings)], places)
    findings = with_places(read.findings, places, {})
    if len(nodes) == 1 and places.launchers > 1 and not places.tasks_are_ranks:
        nodes = ()  # the log names one of several nodes
    failures = read.placed_failures(places) or read.killed_task(places.tasks_are_ranks)
    return _facts(read, findings, rules, failures=tuple(failures), ranks=places.of_ranks(), nodes=nodes)


def _facts(read: Read, findings: Sequence[Finding], rules: Rules, **more: Any) -> Facts:
    """Combine the facts of the log with `more`."""
    return Facts(
        findings=tuple(findings),
        asked_to_end=read.asked_to_end,
        cancelled=read.cancelled,
        failed_tasks=read.failed_by_themselves(findings),
        ended_on=read.ended_on(findings),
        other_work=read.other_work,
        iteration=read.iteration,
        last_lines=read.last,
        unread=(*dict.fromkeys(read.unread), *rules.given_up()),
        **more,
    )


def read_attempt(
    root: Path,
    folder: Path,
    part: LogPart | None,
    nodes: Sequence[str],
    slurm: SlurmEnd,
    rules: Rules,
    seconds: float,
) -> Facts:
    """Return the facts of the attempt in `folder`, under the run's `root`. Never raises for unreadable files."""
    ends_at = time.monotonic() + seconds
    read = Read()
    if part is not None:
        try:
            read = read_part(part, rules, share_of(ends_at, _LOG_SHARE))
        except OSError as error:
            read.unread.append(f"{part.path}: {error.strerror or error}")
    ranks = rank_map(root, folder)
    noted = noted_failures(root, folder)
    own, known = rank_outputs(root, folder, rules, ends_at, read.unread)
    nodes = tuple(nodes) or tuple(dict.fromkeys(place.node for place in ranks))
    places = learn(read.placements, read.failures, ranks, nodes, read.opening)
    if not nodes:
        nodes = _nodes_named(read, [], places)
        places = replace(places, nodes=nodes) if len(nodes) == 1 else places
    findings = with_places(read.findings, places, known)
    known_lines = {(one.rank, one.text.rpartition("]:")[2].strip()) for one in findings}
    new = [one for one in with_places(own, places, known) if (one.rank, one.text.strip()) not in known_lines]
    reference = max((one.at for one in (*findings, *new) if one.at), default=now())
    words = words_of_failures(rules, ((one, _error_words(root, one)) for one in noted), reference)
    failures = _one_each([*noted, *read.placed_failures(places)]) or read.killed_task(places.tasks_are_ranks)
    found = _facts(
        read,
        findings,
        rules,
        failures=tuple(failures),
        ranks=ranks or places.of_ranks(),
        slurm=slurm,
        nodes=nodes,
        stacks=_stacks(root, folder) if read.is_silent else (),
        advances_s={one.node: one.clock.timestamp() - stamped_s for one, stamped_s in node_clocks(root, folder)},
    )
    return replace(found, findings=(*findings, *new, *words))


def _stacks(root: Path, folder: Path) -> tuple[StackGroup, ...]:
    """Return the stacks of ranks at the last check of a silent log."""
    try:
        return recorded(grouped(read_written(read_text(root, folder / SILENT_STACKS) or "")))
    except OSError:
        return ()


def _error_words(root: Path, failure: Failure) -> str:
    """Return the traceback that a rank left; empty if its file is missing or outside the run."""
    path = Path(failure.error_file) if failure.error_file else None
    if path is None or not path.is_relative_to(root):
        return ""
    return read_error_file(path)


def _one_each(failures: Sequence[Failure]) -> list[Failure]:
    """Return one failure for each rank; a launcher's record takes precedence over its printed lines."""
    return list({one.rank: one for one in reversed(failures)}.values())[::-1]


def _nodes_named(read: Read, more: Sequence[str], places: Places) -> tuple[str, ...]:
    names = [*(one.node for one in read.placements), *more, *(one.node for one in read.failures)]
    return tuple(dict.fromkeys(places.name(name) for name in names if name))
