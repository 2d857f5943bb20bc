"""Parallel work on many tasks in forked processes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from trainer.core.parent import end_with_parent
from trainer.data import program
from trainer.formats.errors import CheckpointError

T = TypeVar("T")
R = TypeVar("R")

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

    done: called with each task's index when it ends. The first failure ends the others and is raised: an OSError and a
    killed worker as CheckpointError. The processes share everything from before the fork; this process must not have
    used several threads of torch's.
    """
    global _job
    if not tasks:
        return []
    results: dict[int, R] = {}
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _begin_worker) as pool:
        _job = tasks, work
        # Threads do not exist in the child. If it found a process group of torch's to be garbage, it would wait for its
        # threads forever at the end, or die of SIGSEGV.
        gc.freeze()
        try:
            futures = {pool.submit(_run, index): index for index in range(len(tasks))}  # the first one forks all
            gc.unfreeze()
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                done(futures[future])
        except BrokenProcessPool:
            raise CheckpointError("a worker process was killed: was its memory limited?") from None
        except BaseException:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()
            raise
        finally:
            _job = (), work
            gc.unfreeze()
            pool.shutdown(cancel_futures=True)
    return [results[index] for index in range(len(tasks))]


#: The tasks and the work of the running `each`, which forked processes inherit: it need not be picklable.
_job: tuple[Sequence[Any], Callable[[Any], Any]] = ((), id)


def _begin_worker() -> None:
    """Prepare a forked process. It ends with its parent, which also handles interruptions."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(index: int) -> Any:
    tasks, work = _job
    try:
        return work(tasks[index])
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        raise CheckpointError(f"{where}{error.strerror or error}") from None


def adding_up(sizes: list[int], reached: Callable[[int], None]) -> Callable[[int], None]:
    """Return a `done` for `each` that passes the total size of all ended tasks to `reached`."""
    ended = 0

    def done(task: int) -> None:
        nonlocal ended
        ended += sizes[task]
        reached(ended)

    return done
