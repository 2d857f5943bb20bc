"""Work on many things in processes of their own, one thing after another in each."""

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

from trainer.formats.errors import CheckpointError

T = TypeVar("T")
R = TypeVar("R")

_PR_SET_PDEATHSIG = 1
#: More than this share one disk badly, and each brings a process' own memory.
MOST_WORKERS = 16


def default_workers() -> int:
    """One for each core that this process may use."""
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


def each(
    tasks: Sequence[T], work: Callable[[T], R], workers: int, done: Callable[[int], None] = lambda _task: None
) -> list[R]:
    """`work(task)` of every task, in their order, done by forked processes that take the next one when they are free.

    done: told each task's index as it ends. The first failure ends the others: CheckpointError as it is, anything else
    with its traceback as RuntimeError, a worker that was killed as CheckpointError. What the processes were forked with
    they share; this one must not have used several threads of torch's.
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
    """Fork with all that there is out of the collector's reach.

    In the child its threads are gone, and a process group of torch's that was only found there to be garbage would wait
    for them for ever as it ends, or die of SIGSEGV.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def adding_up(sizes: list[int], reached: Callable[[int], None]) -> Callable[[int], None]:
    """`done` for `each` that tells `reached` how much all tasks that have ended are."""
    ended = 0

    def done(task: int) -> None:
        nonlocal ended
        ended += sizes[task]
        reached(ended)

    return done


def _received(connection: Connection, process: BaseProcess) -> tuple[int, Any]:
    """(index, result) of a task that has ended. Raises what it raised."""
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
    """Do tasks as their indices come, until None does. Ends with the process that forked it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that process ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()
    with contextlib.suppress(EOFError, OSError):
        while (index := connection.recv()) is not None:
            connection.send((index, *_outcome(work, tasks[index])))


def _outcome(work: Callable[[Any], Any], task: Any) -> tuple[Any, str | None, str | None]:
    """(result, what a CheckpointError says, any other error's traceback)."""
    try:
        return work(task), None, None
    except CheckpointError as error:
        return None, str(error), None
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return None, f"{where}{error.strerror or error}", None
    except Exception:
        return None, None, traceback.format_exc()
