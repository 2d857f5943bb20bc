"""Read one log: its findings, failed ranks and places, within limits of time and memory."""

from __future__ import annotations

import itertools
import os
import re
import signal
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from opsctl.core.files.trusted import open_file
from opsctl.core.output import printable
from opsctl.diagnosis.hangs.summary import GOES_ON, SILENT
from opsctl.diagnosis.triage.collective_timeouts import WAITED_MARK, other_work
from opsctl.diagnosis.triage.elastic import MARKS, failure_of_block, failure_of_line, task_of_srun, tasks_of_srun
from opsctl.diagnosis.triage.findings import (
    ENDING_RULES,
    OUR_OWN,
    STEP_CANCELLED,
    Finding,
    findings_of_line,
    frames_above,
    is_root,
)
from opsctl.diagnosis.triage.line_prefixes import usual_line
from opsctl.diagnosis.triage.lines import read_line
from opsctl.diagnosis.triage.log_header import OPENING_BYTES, Opening, Placement, read_opening
from opsctl.diagnosis.triage.rank_locations import PLACE_MARKS, Places, placements_in
from opsctl.diagnosis.triage.rules import Role, Rules
from opsctl.diagnosis.triage.scan import Hit, last_progress, line_numbers, scan, text_around
from opsctl.run.attempts.outcome import signal_of
from opsctl.run.attempts.verdict import Quote
from opsctl.run.logs.line_text import last_lines
from trainer.formats.attempt.attempt_records import Failure

#: Bytes around a line that are read for its traceback, or for the block that it begins.
_AROUND_BYTES = 24 << 10
_WAITING_BYTES = 256 << 10
_MOST_AROUND = 400
_LAST_LINES, _LONGEST_LAST = 12, 300
_FRAMED = (b"Error", b"Exception", b"BadZipFile")
_COUNT_NUMBERS_S = 2.0
#: A message of torch's launcher that a signal ended it, or killed one of its ranks.
_WAS_ENDED = re.compile(r"Received 15 death signal|failed \(exitcode: -[79]\)|return code = -[79]\b")
#: The end of a line that continues with ranks on the next one.
_CONTINUES_BELOW, _BEFORE_RANKS = (" ranks:", " names:", " heartbeats):"), re.compile(r"^.{0,60}?(?=\d+: \[)")
#: A message of syslogd on every terminal: a line with the host's name, then the kernel's line.
_SYSLOGD, _OF_SYSLOGD = re.compile(r"Message from syslogd@(?P<node>[\w.-]+)"), re.compile(r"\s*kernel: ?\[")
_HOST_LABEL = re.compile(r"(?i)^@.{0,80}\brank|\]<std|\b(?:host|node)(?:name)?\b|\(global: \d|NCCL INFO NET/")
_SILENCE = (SILENT.encode(), GOES_ON.encode())
#: The share of the time for the search through a log; the rest is for judging the hits.
_SEARCH_SHARE = 0.6


@dataclass(frozen=True)
class LogPart:
    """A log and the part of it to read."""

    path: Path
    begin: int = 0
    end: int | None = None  # None: to the end of the file
    root: Path | None = None  # of the run that owns the file; None: any file


@dataclass(frozen=True)
class FailedTask:
    """A task that failed according to srun."""

    node: str
    tasks: tuple[int, ...]  # with the same end
    exit_code: int
    signal: int | None
    order: int  # position of srun's line


@dataclass(frozen=True)
class PrintedEnd:
    """The end of a rank, as its launcher printed it."""

    failure: Failure
    order: int  # position of that line
    task: int | None = None  # srun's task of the launcher


@dataclass
class Read:
    """The contents of one or more logs."""

    findings: list[Finding] = field(default_factory=list)
    ends: list[PrintedEnd] = field(default_factory=list)
    iteration: int | None = None
    last: tuple[Quote, ...] = ()
    tasks: list[FailedTask] = field(default_factory=list)  # failed tasks in srun's order
    unread: list[str] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)  # of places
    opening: Opening = field(default_factory=Opening)
    other_work: tuple[tuple[int, str], ...] = ()
    is_silent: bool = False  # the job reported that the log stopped, and not that it continued

    @property
    def failures(self) -> list[Failure]:
        """Return the failed ranks that launchers printed."""
        return [one.failure for one in self.ends]

    def placed_failures(self, places: Places) -> list[Failure]:
        """Return the failed ranks with their nodes: for a host called localhost, the node of srun's task."""
        return [msgspec.structs.replace(one.failure, node=_node_of(one, places)) for one in self.ends]

    @property
    def asked_to_end(self) -> frozenset[int]:
        """Return the ranks that SIGTERM or SIGINT ended before anything ended the remaining processes."""
        ended = self.ended_at
        asked = (one for one in self.ends if signal_of(one.failure) in (signal.SIGTERM, signal.SIGINT))
        return frozenset(one.failure.rank for one in asked if ended is None or one.order < ended)

    @property
    def ended_at(self) -> int | None:
        """Return the position of the first line about ending the remaining processes."""
        return min((one.order for one in self.findings if one.rule.name in ENDING_RULES), default=None)

    @property
    def cancelled(self) -> Quote | None:
        """Return the line that cancelled a step before any failure: srun also cancels the rest after a failure."""
        late = [one for one in self.findings if not one.is_before_progress]
        line_found = min(
            (one for one in late if one.rule.name == STEP_CANCELLED), key=lambda one: one.order, default=None
        )
        failed = [one.order for one in late if one.rule.role is Role.CASCADE] + [one.order for one in self.tasks]
        return None if line_found is None or any(order < line_found.order for order in failed) else line_found.quote

    def failed_by_themselves(self, findings: Sequence[Finding]) -> tuple[str, ...]:
        """Return nodes with failed tasks, before anything ended the others; none if other tasks explain the failure."""
        why = {one.task for one in findings if is_root(one) and one.task is not None and not one.is_before_progress}
        if why and self.tasks and not why & {task for one in self.tasks for task in one.tasks}:
            return ()
        ended, is_killed = self.ended_at, bool(self.tasks) and self.tasks[0].signal is not None
        return tuple(one.node for one in self.tasks if not is_killed or ended is None or one.order < ended)

    def ended_on(self, findings: Sequence[Finding]) -> str:
        """Return the node of the first task or launcher that a signal ended before any rank reported an error."""
        ended, roots = self.ended_at, [one.order for one in findings if one.rule.role is not Role.TEARDOWN]
        tasks = [(one.order, one.node) for one in self.tasks if one.signal in (signal.SIGKILL, signal.SIGBUS)]
        agents = [(one.order, one.node) for one in findings if _WAS_ENDED.search(one.text) and one.node]
        order, node = min([*tasks, *agents], default=(0, ""))
        is_first = not any(one < order for one in (*roots, *(one.order for one in self.ends)))
        return node if is_first and (ended is None or order < ended) else ""

    def killed_task(self, is_rank: bool) -> list[Failure]:
        """Return the single task that a signal ended first according to srun, if each task is a rank."""
        if not is_rank or not self.tasks:
            return []
        first, ended = self.tasks[0], self.ended_at
        if first.signal is None or len(first.tasks) != 1 or (ended is not None and ended < first.order):
            return []
        return [Failure(rank=first.tasks[0], node=first.node, signal=first.signal)]


def read_part(part: LogPart, rules: Rules, ends_at: float) -> Read:
    """Read the log until `time.monotonic()` reaches `ends_at`. Raises OSError."""
    fd = _opened(part)
    try:
        size = os.fstat(fd).st_size
        end = size if part.end is None else min(size, part.end)
        found = scan(
            fd, part.begin, end, rules, share_of(ends_at, _SEARCH_SHARE), extra=(*MARKS, *PLACE_MARKS, *_SILENCE)
        )
        _, opening = text_around(fd, part.begin, 0, min(OPENING_BYTES, end - part.begin))
        progress, iteration = last_progress(fd, part.begin, end)
        reference = datetime.fromtimestamp(os.fstat(fd).st_mtime, UTC)
        read = Read(iteration=iteration, opening=read_opening(opening))
        usual = usual_line(read.opening.hosts, read.opening.fronts.places)
        labelled = (line for line in map(usual, opening) if _HOST_LABEL.search(line))
        read.placements += [one for line in labelled for one in placements_in(line, reference)]
        line_found = [hit.line for hit in found.hits if hit.line.startswith(_SILENCE)]
        read.is_silent = bool(line_found) and line_found[-1].startswith(SILENT.encode())
        if not found.is_whole:
            read.unread.append(
                f"{part.path}: only the newest {end - found.begin} of {end - part.begin} bytes were read"
            )
        take(fd, found.hits, part.path.name, rules, reference, progress, ends_at, read)
        read.other_work = _other_work(fd, found.hits, max(progress, part.begin), end, reference)
        read.findings = _numbered(fd, read.findings, min(ends_at, time.monotonic() + _COUNT_NUMBERS_S))
        read.last = _last_lines(fd, part.path.name, part.begin, end)
        return read
    finally:
        os.close(fd)


def take(
    fd: int,
    hits: Sequence[Hit],
    source: str,
    rules: Rules,
    reference: datetime,
    progress: int,
    ends_at: float,
    read: Read,
) -> None:
    """Judge the lines, the newest first, and add the results to `read` in the log's order."""
    framed = (hit.begin for hit in hits if any(word in hit.line for word in _FRAMED))
    with_frames = set(itertools.islice(framed, _MOST_AROUND))
    usual = usual_line(read.opening.hosts, read.opening.fronts.places)
    for number, hit in enumerate(reversed(hits)):
        if _is_over(ends_at):
            read.unread.append(f"{source}: {len(hits) - number} older lines with possible causes were not checked")
            break
        raw = hit.line.replace(b"\0", b"").decode(errors="replace")
        line = usual(raw)
        if any(mark in hit.line for mark in MARKS):
            if (task := task_of_srun(line)) is not None:
                read.tasks.append(FailedTask(task[0], tasks_of_srun(line)[1], task[1], task[2], hit.begin))
            elif (ended := failure_of_line(line, reference)) is not None:
                read.ends.append(PrintedEnd(ended, hit.begin))
            elif "srun" not in line:
                _, lines = text_around(fd, hit.begin, 0, 4096)
                if (failure := failure_of_block([*map(usual, lines)], reference)) is not None:
                    read.ends.append(PrintedEnd(failure, hit.begin, read_line(line, reference).task))
        read.placements += placements_in(line, reference)
        if line.rstrip().endswith(_CONTINUES_BELOW):
            _, lines = text_around(fd, hit.begin, 0, 4096)
            line = " ".join([line.rstrip(), *(_BEFORE_RANKS.sub("", below) for below in lines[1:2])])
        if _OF_SYSLOGD.match(line):
            before, _ = text_around(fd, hit.begin, 4096, 0)
            sender = _SYSLOGD.search(before[-1]) if before else None
            line = f"{sender['node']} {line.lstrip()}" if sender else line
        frames: list[str] = []
        if hit.begin in with_frames:
            before, _ = text_around(fd, hit.begin, _AROUND_BYTES, 0)
            frames = frames_above([usual(above) for above in before], line, reference)
        one = findings_of_line(rules, line, source, hit.begin, reference, frames)
        if one is not None:
            text = one.text if line is raw else printable(raw.strip())
            read.findings.append(replace(one, text=text, is_before_progress=hit.begin < progress))
    for found in (read.findings, read.ends, read.tasks):
        found.reverse()


def _node_of(end: PrintedEnd, places: Places) -> str:
    of_launcher = places.node_of_task.get(end.task, "") if end.task is not None else ""
    return places.name(end.failure.node) or of_launcher or places.node(end.failure.rank, None)


def share_of(ends_at: float, share: float) -> float:
    """Return the time at which that share of the time until `ends_at` is over."""
    now_s = time.monotonic()
    return now_s + share * (ends_at - now_s)


def _is_over(ends_at: float) -> bool:
    return time.monotonic() > ends_at


def _other_work(
    fd: int, hits: Sequence[Hit], progress: int, end: int, reference: datetime
) -> tuple[tuple[int, str], ...]:
    """Return the work that continued around the first line about a collective timeout after the last iteration."""
    begin = next((hit.begin for hit in hits if hit.begin >= progress and WAITED_MARK in hit.line), None)
    if begin is None:
        return ()
    before, after = text_around(fd, begin, min(_AROUND_BYTES, begin - progress), min(_WAITING_BYTES, end - begin))
    return tuple(other_work(before, after, reference))


def _numbered(fd: int, findings: list[Finding], ends_at: float) -> list[Finding]:
    """Add line numbers as far as time allows; later lines have none."""
    numbers = line_numbers(fd, [one.order for one in findings], ends_at)
    return [replace(one, line=numbers.get(one.order)) for one in findings]


def _last_lines(fd: int, source: str, begin: int, end: int) -> tuple[Quote, ...]:
    found = last_lines(fd, _LAST_LINES, begin=begin, end=end)
    lines = [printable(line.strip())[:_LONGEST_LAST] for line in found]
    return tuple(Quote(source=source, text=line) for line in lines if line and not OUR_OWN.match(line))


def _opened(part: LogPart) -> int:
    if part.root is not None:
        return open_file(part.root, part.path)
    fd = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "not a regular file")
    return fd
