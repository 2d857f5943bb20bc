"""Parallel work on many tasks in forked processes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from trainer.data import program
from trainer.formats.errors import CheckpointError

T = TypeVar("T")
R = TypeVar("R")

_PR_SET_PDEATHSIG = 1
_M_MMAP_THRESHOLD = -3
_GIVEN_BACK_BYTES = 1 << 20
#: More processes slow down the disk, and each needs memory.
MOST_WORKERS = 16


def run_program(work: Callable[[], None]) -> int:
    """Run a program of this package; see `trainer.data.program.run_program`.

    The memory of freed tensors of a megabyte or more is returned to the system at once. glibc raises that limit to the
    size of a freed block, and then keeps 16 MiB blocks on its heap: a freed aligned block seldom fits the next one of
    the same size.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _GIVEN_BACK_BYTES)
    return program.run_program(work, lambda: "unfinished output was removed")


def default_workers() -> int:
    """Return the number of cores that this process may use, up to a limit."""
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


def each(
    tasks: Sequence[T], work: Callable[[T], R], workers: int, done: Callable[[int], None] = lambda _task: None
) -> list[R]:
    """Return `work(task)` for every task, in order. Forked processes take the next task when they are free.

    done: called with each task's index when it ends. The first failure ends the others: a CheckpointError is raised
    unchanged, another error with its traceback as RuntimeError, a killed worker as CheckpointError. The processes
    share everything from before the fork; this process must not have used several threads of torch's.
    """
    context = multiprocessing.get_context("fork")
    results: dict[int, R] = {}
    left = iter(range(len(tasks)))
    running: dict[Connection, BaseProcess] = {}
    try:
        for index in [index for _, index in zip(range(min(workers, len(tasks))), left, strict=False)]:
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(
                target=_serve, args=(theirs, [*running, ours], tasks, work), daemon=True
            )
            with _inheriting_no_garbage():
                process.start()
            theirs.close()
            running[ours] = process
            ours.send(index)
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                index, result = _received(connection, running[connection])
                results[index] = result
                done(index)
                following = next(left, None)
                connection.send(following)
                if following is None:
                    connection.close()
                    running.pop(connection).join()
    finally:
        for connection, process in running.items():
            process.kill()
            process.join()
            connection.close()
    return [results[index] for index in range(len(tasks))]


@contextlib.contextmanager
def _inheriting_no_garbage() -> Iterator[None]:
    """Fork with all existing objects out of the garbage collector's reach.

    Threads do not exist in the child. If it found a process group of torch's to be garbage, it would wait for its
    threads forever at the end, or die of SIGSEGV.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def adding_up(sizes: list[int], reached: Callable[[int], None]) -> Callable[[int], None]:
    """Return a `done` for `each` that passes the total size of all ended tasks to `reached`."""
    ended = 0

    def done(task: int) -> None:
        nonlocal ended
        ended += sizes[task]
        reached(ended)

    return done


def _received(connection: Connection, process: BaseProcess) -> tuple[int, Any]:
    """Receive (index, result) of an ended task. Raises the task's error."""
    try:
        index, result, error, trace = connection.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        reason = ": was its memory limited?" if code == -signal.SIGKILL else ""
        raise CheckpointError(f"a worker process ended {how}{reason}") from None
    if trace is not None:
        raise RuntimeError(trace)
    if error is not None:
        raise CheckpointError(error)
    return index, result


def _serve(connection: Connection, others: list[Connection], tasks: Sequence[Any], work: Callable[[Any], Any]) -> None:
    """Do the tasks whose indices arrive, until the pipe closes. Ends with the parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()
    with contextlib.suppress(EOFError, OSError):
        while (index := connection.recv()) is not None:
            connection.send((index, *_outcome(work, tasks[index])))


def _outcome(work: Callable[[Any], Any], task: Any) -> tuple[Any, str | None, str | None]:
    """Return (result, text of a CheckpointError, traceback of any other error)."""
    try:
        return work(task), None, None
    except CheckpointError as error:
        return None, str(error), None
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return None, f"{where}{error.strerror or error}", None
    except Exception:
        return None, None, traceback.format_exc()
