"""Reading what is left of a bad end: logs, ranks' own output, error files, launchers' notes. Never more than it may."""

from __future__ import annotations

import itertools
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from opsctl.attempts.verdict import Quote
from opsctl.errors import OpsctlError
from opsctl.logs.tail import last_lines
from opsctl.moments import now
from opsctl.output import printable
from opsctl.records.attempt_folder import node_clocks, noted_failures, rank_map
from opsctl.records.trusted import open_file
from opsctl.triage.elastic import MARKS, failure_of_block, failure_of_mpi, task_of_srun, tasks_of_srun
from opsctl.triage.findings import (
    ENDING_RULES,
    Facts,
    Finding,
    SlurmWord,
    findings_of_line,
    frames_above,
    words_of_failures,
)
from opsctl.triage.places import PLACE_MARKS, Told, learn, short_name, told_by, with_places
from opsctl.triage.rules import Rules
from opsctl.triage.scanning import Hit, last_progress, line_numbers, scan, text_around
from opsctl.triage.waiting import WAITED_MARK, other_work
from trainer.formats.attempt_records import Failure
from trainer.formats.error_file import read_error_file

#: How much of the text around a line is read for its traceback, or for the block that it begins.
_AROUND_BYTES = 24 << 10
_WAITING_BYTES = 256 << 10
_MOST_AROUND = 400
_MOST_FILES, _OF_EACH_BYTES = 4000, 8 << 20
_LAST_LINES, _LONGEST_LAST = 12, 300
_FRAMED = (b"Error", b"Exception")
_COUNT_NUMBERS_S = 2.0
#: How much of the time the search through a log may take; what it finds is judged in the rest.
_SEARCH_SHARE = 0.6
#: How much of an attempt's time its part of the log takes; ranks' own output is read in the rest.
_LOG_SHARE = 0.7
#: Ranks' own output, and their launchers' copies of it, under the attempt's folder.
_RANK_FILES = ("*.out", "*.log", "*.err", "*.txt")


@dataclass(frozen=True)
class LogPart:
    """A log, and what of it is asked for."""

    path: Path
    begin: int = 0
    end: int | None = None  # None: all that is there
    root: Path | None = None  # of a run, whose files are opened as the run's own; None: as any file


@dataclass(frozen=True)
class _FailedTask:
    node: str
    tasks: tuple[int, ...]  # that ended alike
    exit_code: int
    signal: int | None
    order: int  # where srun said it


@dataclass
class _Read:
    findings: list[Finding] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    iteration: int | None = None
    last: tuple[Quote, ...] = ()
    tasks: list[_FailedTask] = field(default_factory=list)  # as srun said, in its order
    unread: list[str] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)  # of places
    other_work: tuple[tuple[int, str], ...] = ()


def read_log(part: LogPart, rules: Rules, seconds: float) -> Facts:
    """What one log says by itself. Raises OpsctlError where it cannot be read."""
    ends_at = time.monotonic() + seconds
    try:
        read = _read_log(part, rules, ends_at)
    except OSError as error:
        raise OpsctlError(f"cannot read {part.path}: {error.strerror or error}") from None
    places = learn(read.told, read.failures, (), ())
    nodes = _nodes_named(read, [one.node for one in read.findings])
    findings = with_places(read.findings, places, {})
    return Facts(
        findings=tuple(findings),
        failures=tuple(read.failures or _killed_task(read, places.tasks_are_ranks)),
        ranks=places.of_ranks(),
        nodes=nodes,
        failed_tasks=_failed_by_themselves(read),
        other_work=read.other_work,
        iteration=read.iteration,
        last_lines=read.last,
        unread=tuple(read.unread),
    )


def read_attempt(
    root: Path, folder: Path, part: LogPart | None, nodes: Sequence[str], slurm: SlurmWord, rules: Rules, seconds: float
) -> Facts:
    """What the attempt in `folder`, under the run's `root`, has left. Never raises for what cannot be read."""
    ends_at = time.monotonic() + seconds
    read = _Read()
    if part is not None:
        try:
            read = _read_log(part, rules, _share_of(ends_at, _LOG_SHARE))
        except OSError as error:
            read.unread.append(f"{part.path}: {error.strerror or error}")
    ranks = rank_map(root, folder)
    noted = noted_failures(root, folder)
    own, known = _rank_outputs(root, folder, rules, ends_at, read.unread)
    nodes = tuple(nodes) or tuple(dict.fromkeys(place.node for place in ranks))
    places = learn(read.told, read.failures, ranks, nodes)
    if not nodes:
        nodes = _nodes_named(read, [])
        places = replace(places, nodes=nodes) if len(nodes) == 1 else places
    findings = with_places(read.findings, places, known)
    said = {(one.rank, one.text.rpartition("]:")[2].strip()) for one in findings}
    new = [one for one in with_places(own, places, known) if (one.rank, one.text.strip()) not in said]
    reference = max((one.at for one in (*findings, *new) if one.at), default=now())
    words = words_of_failures(rules, ((one, _error_words(root, one)) for one in noted), reference)
    printed = [msgspec.structs.replace(one, node=short_name(one.node, nodes)) for one in read.failures]
    failures = _one_each([*noted, *printed]) or _killed_task(read, places.tasks_are_ranks)
    return Facts(
        findings=(*findings, *new, *words),
        failures=tuple(failures),
        ranks=ranks or places.of_ranks(),
        slurm=slurm,
        nodes=nodes,
        failed_tasks=_failed_by_themselves(read),
        other_work=read.other_work,
        iteration=read.iteration,
        last_lines=read.last,
        unread=tuple(dict.fromkeys(read.unread)),
        advances_s={said.node: said.clock.timestamp() - stamped_s for said, stamped_s in node_clocks(root, folder)},
    )


def _read_log(part: LogPart, rules: Rules, ends_at: float) -> _Read:
    fd = _opened(part)
    try:
        size = os.fstat(fd).st_size
        end = size if part.end is None else min(size, part.end)
        found = scan(fd, part.begin, end, rules, _share_of(ends_at, _SEARCH_SHARE), extra=MARKS + PLACE_MARKS)
        progress, iteration = last_progress(fd, part.begin, end)
        reference = datetime.fromtimestamp(os.fstat(fd).st_mtime, UTC)
        read = _Read(iteration=iteration)
        if not found.is_whole:
            read.unread.append(
                f"{part.path}: of {end - part.begin} bytes only the newest {end - found.begin} were read"
            )
        _take(fd, found.hits, part.path.name, rules, reference, progress, ends_at, read)
        read.other_work = _other_work(fd, found.hits, max(progress, part.begin), reference)
        read.findings = _numbered(fd, read.findings, min(ends_at, time.monotonic() + _COUNT_NUMBERS_S))
        read.last = _last_lines(fd, part.path.name)
        return read
    finally:
        os.close(fd)


def _take(
    fd: int,
    hits: Sequence[Hit],
    source: str,
    rules: Rules,
    reference: datetime,
    progress: int,
    ends_at: float,
    read: _Read,
) -> None:
    """Judge the lines, the newest first, and keep what they say in the log's order."""
    framed = (hit.begin for hit in hits if any(word in hit.line for word in _FRAMED))
    with_frames = set(itertools.islice(framed, _MOST_AROUND))
    for number, hit in enumerate(reversed(hits)):
        if _is_over(ends_at):
            read.unread.append(f"{source}: {len(hits) - number} older lines that may say why were not judged")
            break
        line = hit.line.replace(b"\0", b"").decode(errors="replace")
        if any(mark in hit.line for mark in MARKS):
            if (task := task_of_srun(line)) is not None:
                read.tasks.append(_FailedTask(task[0], tasks_of_srun(line)[1], task[1], task[2], hit.begin))
            elif (ended := failure_of_mpi(line)) is not None:
                read.failures.append(ended)
            elif "srun" not in line:
                _, lines = text_around(fd, hit.begin, 0, 4096)
                if (failure := failure_of_block(lines, reference)) is not None:
                    read.failures.append(failure)
        read.told += told_by(line, reference)
        frames: list[str] = []
        if hit.begin in with_frames:
            before, _ = text_around(fd, hit.begin, _AROUND_BYTES, 0)
            frames = frames_above(before, line, reference)
        one = findings_of_line(rules, line, source, hit.begin, reference, frames)
        if one is not None:
            read.findings.append(replace(one, is_before_progress=hit.begin < progress))
    for found in (read.findings, read.failures, read.tasks):
        found.reverse()


def _share_of(ends_at: float, share: float) -> float:
    """When that share of the time until `ends_at` is over."""
    now_s = time.monotonic()
    return now_s + share * (ends_at - now_s)


def _is_over(ends_at: float) -> bool:
    return time.monotonic() > ends_at


def _rank_outputs(
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
        read = _Read()
        try:
            with os.fdopen(open_file(root, path), "rb") as file:
                end = os.fstat(file.fileno()).st_size
                begin = max(0, end - _OF_EACH_BYTES)
                hits = scan(file.fileno(), begin, end, rules, ends_at).hits
                progress, _ = last_progress(file.fileno(), begin, end)
                stamp = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
                _take(file.fileno(), hits, str(path.relative_to(folder)), rules, stamp, progress, ends_at, read)
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


def _error_words(root: Path, failure: Failure) -> str:
    """All that a rank left of its traceback; its node's file may be gone, or another's."""
    path = Path(failure.error_file) if failure.error_file else None
    if path is None or not path.is_relative_to(root):
        return ""
    return read_error_file(path)


def _one_each(failures: Sequence[Failure]) -> list[Failure]:
    """A failure for each rank: what launchers noted comes before what they printed."""
    found: dict[int, Failure] = {}
    for one in failures:
        found.setdefault(one.rank, one)
    return list(found.values())


def _nodes_named(read: _Read, more: Sequence[str]) -> tuple[str, ...]:
    names = [*(one.node for one in read.told), *more, *(one.node for one in read.failures)]
    return tuple(dict.fromkeys(filter(None, names)))


def _ended_at(read: _Read) -> int | None:
    """Where the first line stands that says that somebody ends what is left."""
    return min((one.order for one in read.findings if one.rule.name in ENDING_RULES), default=None)


def _failed_by_themselves(read: _Read) -> tuple[str, ...]:
    """The nodes on which tasks failed; where a signal ended the first, those of before anything ended the others."""
    ended = _ended_at(read)
    is_killed = bool(read.tasks) and read.tasks[0].signal is not None
    return tuple(one.node for one in read.tasks if not is_killed or ended is None or one.order < ended)


def _other_work(fd: int, hits: Sequence[Hit], progress: int, reference: datetime) -> tuple[tuple[int, str], ...]:
    """What went on around the first line after the last iteration that tells of a wait in vain."""
    begin = next((hit.begin for hit in hits if hit.begin >= progress and WAITED_MARK in hit.line), None)
    if begin is None:
        return ()
    before, after = text_around(fd, begin, min(_AROUND_BYTES, begin - progress), _WAITING_BYTES)
    return tuple(other_work(before, after, reference))


def _killed_task(read: _Read, is_rank: bool) -> list[Failure]:
    """The one task that a signal ended, as srun says, before anything ended the others, where tasks are ranks."""
    if not is_rank or not read.tasks:
        return []
    first = read.tasks[0]
    ended = _ended_at(read)
    if first.signal is None or len(first.tasks) != 1 or (ended is not None and ended < first.order):
        return []
    return [Failure(rank=first.tasks[0], node=first.node, signal=first.signal)]


def _numbered(fd: int, findings: list[Finding], ends_at: float) -> list[Finding]:
    """With line numbers, as far as time allows; lines further back than that stay without."""
    numbers = line_numbers(fd, [one.order for one in findings], ends_at)
    return [replace(one, line=numbers.get(one.order)) for one in findings]


def _last_lines(fd: int, source: str) -> tuple[Quote, ...]:
    lines = [printable(line.strip())[:_LONGEST_LAST] for line in last_lines(fd, _LAST_LINES)]
    return tuple(Quote(source=source, text=line) for line in lines if line)


def _opened(part: LogPart) -> int:
    if part.root is not None:
        return open_file(part.root, part.path)
    fd = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "no regular file: a log is one")
    return fd
