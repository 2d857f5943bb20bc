"""One walk by several processes, within a budget.

It uses processes, not threads: a walk is limited by the interpreter if the host knows the files, else by a server, and
a process that hangs in the kernel blocks no other. The calling process touches no file system. It hands out folders,
collects the results, and never waits longer than the budget. A worker that has not answered by then is killed; its
folder stays pending, and its results do not count.

Workers are forked, which is safe next to threads of the caller: a worker needs nothing that a thread may hold. It
imports, prints and logs nothing, and reports through its own pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Generic, TypeVar

from opsctl.core.dirwalk.sequential import BEGINNING, MOST_UNREAD, Pending, Stretch, Unread, Visitor, Walked

Found = TypeVar("Found")
#: A process reports after so long; the first ones sooner, so that all have something to do.
_REPORT_S, _FIRST_REPORT_S = 0.05, 0.002
#: Entries of one report, at most: what is found in them is held until then.
_REPORT_ENTRIES = 20_000
#: Beyond its time a walk waits so long for reports that are on their way.
GRACE_S = 0.5
#: A process that has not reported for so long hangs, where the walk's time is not over before.
HANGS_S = 60.0
#: One process per core suffices if this host knows the files; after this time the walk waits for a server.
_ALL_AFTER_S = 0.5
#: For those that were killed to be gone; one that hangs in the kernel stays, and is not waited for.
_LAST_S = 0.2


@dataclass(frozen=True)
class Budget:
    """The limits of one call of a walk."""

    time_s: float | None = None  # None: until it is done
    entries: int | None = None
    processes: int = 0  # 0: as many as are of use here


@dataclass(frozen=True)
class _Task:
    pending: list[Pending]
    entries: int
    ends_at: float  # by the monotonic clock, which is one for all processes


@dataclass(frozen=True)
class _Report(Generic[Found]):
    found: Found
    pending: list[Pending]
    entries: int
    unread: list[Unread]


@dataclass(eq=False)
class _Worker:
    """A process that walks."""

    pid: int
    line: Connection
    task: _Task | None = None
    asked_at: float = 0.0


def usual_processes() -> int:
    """Two for each core, for a file server answers several at once; not so many that others there feel it."""
    return min(8, 2 * _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def walk(
    root: Path,
    visitor: Visitor[Found],
    take_in: Callable[[Found], None],
    budget: Budget | None = None,
    begin: Sequence[Pending] = BEGINNING,
) -> Walked:
    """Walk through what is pending under `root`; what copies of `visitor` find is handed to `take_in`, part by part.

    Every entry that is there all the while is seen once, by this call or by one that begins with what it leaves
    pending. Other file systems that are mounted under the root are not entered. Raises OSError where the root cannot be
    opened, and what a visitor raises.
    """
    return _Walk(root, visitor, take_in, budget or Budget()).run(begin)


class _Walk(Generic[Found]):
    def __init__(self, root: Path, visitor: Visitor[Found], take_in: Callable[[Found], None], budget: Budget) -> None:
        self._root, self._visitor, self._take_in = root, visitor, take_in
        self._most, self._began_at = budget.processes or usual_processes(), time.monotonic()
        self._most_at_first = budget.processes or _cores()
        self._left = budget.entries
        self._ends_at = float("inf") if budget.time_s is None else time.monotonic() + budget.time_s
        self._workers: list[_Worker] = []
        self._stopped_in: dict[Pending, _Worker] = {}  # the worker with the names of an unfinished folder
        self._hanging: list[Pending] = []
        self._entries, self._unread, self._unread_count = 0, list[Unread](), 0

    def run(self, begin: Sequence[Pending]) -> Walked:
        """Walk until all is done or the budget is used up."""
        pending = list(begin)
        try:
            while pending or self._busy():
                if not self._is_over():
                    pending = self._dealt(pending)
                if not self._busy():
                    break
                pending += self._reported()
        finally:
            _end(self._workers)
        return Walked(
            pending=(*self._hanging, *pending),  # taken from the end: what hangs comes last next time
            entries=self._entries,
            unread=tuple(self._unread),
            unread_count=self._unread_count,
            hanging=tuple(one.place for one in self._hanging),
        )

    def _busy(self) -> list[_Worker]:
        return [one for one in self._workers if one.task is not None]

    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends_at or (self._left is not None and self._left <= 0)

    def _dealt(self, pending: list[Pending]) -> list[Pending]:
        """Hand the pending folders to idle workers; return those that no worker takes."""
        idle = [one for one in self._workers if one.task is None]
        at_work_s = time.monotonic() - self._began_at
        most = self._most if at_work_s >= _ALL_AFTER_S else self._most_at_first
        while len(idle) < len(pending) and len(self._workers) < most:
            idle.append(self._begun())
        if not idle:
            return pending
        hands: dict[_Worker, list[Pending]] = {}
        for number, one in enumerate(pending):
            holder = self._stopped_in.get(one)
            worker = holder if holder in idle and holder is not None else idle[number % len(idle)]
            hands.setdefault(worker, []).append(one)
        self._stopped_in.clear()
        return [one for worker, hand in hands.items() for one in self._not_given(worker, hand, len(hands))]

    def _not_given(self, worker: _Worker, hand: list[Pending], hands: int) -> list[Pending]:
        """`hand`, where the budget has no entries for it now; else nothing, for it was given."""
        most = _REPORT_ENTRIES
        if self._left is not None:
            granted = sum(one.task.entries for one in self._busy() if one.task is not None)
            most = min(most, max(1, (self._left - granted) // hands)) if self._left > granted else 0
        if not most:
            return hand
        now = time.monotonic()
        report_s = _REPORT_S if worker.asked_at else _FIRST_REPORT_S
        worker.task, worker.asked_at = _Task(hand, most, min(now + report_s, self._ends_at)), now
        worker.line.send(worker.task)
        return []

    def _reported(self) -> list[Pending]:
        """Wait for reports; what is pending by them, and by those that were given up."""
        busy = self._busy()
        now = time.monotonic()
        until = min(self._ends_at + GRACE_S, min(one.asked_at for one in busy) + HANGS_S)
        ready = wait([one.line for one in busy], max(0.0, until - now) if until < float("inf") else None)
        pending: list[Pending] = []
        for worker in busy:
            if worker.line in ready:
                pending += self._taken_in(worker)
        if not ready:
            late = self._ends_at + GRACE_S <= time.monotonic()
            for worker in busy:
                if late or worker.asked_at + HANGS_S <= time.monotonic():
                    self._hanging += worker.task.pending if worker.task else []
                    worker.task = None
                    self._workers.remove(worker)
                    _end([worker])
        return pending

    def _taken_in(self, worker: _Worker) -> list[Pending]:
        try:
            said: _Report[Found] | BaseException = worker.line.recv()
        except EOFError:
            raise ChildProcessError("a process that walked through the folders was killed") from None
        worker.task = None
        if isinstance(said, BaseException):
            raise said
        self._take_in(said.found)
        self._entries += said.entries
        if self._left is not None:
            self._left -= said.entries
        self._unread_count += len(said.unread)
        self._unread += said.unread[: MOST_UNREAD - len(self._unread)]
        self._stopped_in.update({one: worker for one in said.pending if one.after})
        return said.pending

    def _begun(self) -> _Worker:
        here, there = Pipe()
        pid = os.fork()
        if not pid:
            try:
                for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(signal_number, signal.SIG_DFL)
                for line in (here, *(one.line for one in self._workers)):
                    line.close()  # so that only the caller holds them, and all workers end with it
                _work(there, self._root, self._visitor)
            finally:
                os._exit(0)
        there.close()
        worker = _Worker(pid, here)
        self._workers.append(worker)
        return worker


def _work(line: Connection, root: Path, visitor: Visitor[Found]) -> None:
    """Walk the folders received on `line`, until the caller closes it."""
    with contextlib.suppress(EOFError, OSError):
        task: _Task = line.recv()
        try:
            stretch = Stretch(root, visitor)
            while True:
                stack, before = list(task.pending), stretch.entries
                stretch.go(stack, task.entries, task.ends_at)
                unread, stretch.unread = stretch.unread, []
                line.send(_Report(visitor.take(), stack, stretch.entries - before, unread))
                task = line.recv()
        except EOFError:
            return
        except BaseException as error:
            line.send(error)


def _end(workers: Sequence[_Worker]) -> None:
    """Kill them; what hangs in the kernel is left behind."""
    watched = []
    for worker in workers:
        worker.line.close()
        with contextlib.suppress(OSError):
            watched.append(os.pidfd_open(worker.pid))
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
    ends_at = time.monotonic() + _LAST_S
    waiting = list(watched)
    while waiting and (gone := wait(waiting, max(0.0, ends_at - time.monotonic()))):
        waiting = [one for one in waiting if one not in gone]
    for fd in watched:
        os.close(fd)
    for worker in workers:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(worker.pid, os.WNOHANG)
