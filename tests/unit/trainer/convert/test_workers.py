from __future__ import annotations

import gc
import os
import signal
import time
from pathlib import Path

import pytest

from trainer.convert.workers import each
from trainer.formats.errors import CheckpointError


def test_results_come_in_the_order_of_the_tasks_from_other_processes() -> None:
    told: list[int] = []
    found = each(range(7), lambda task: (task * task, os.getpid()), 3, told.append)
    assert [square for square, _ in found] == [task * task for task in range(7)]
    assert os.getpid() not in {process for _, process in found}
    assert sorted(told) == list(range(7))


def test_each_worker_takes_the_next_task_when_it_is_free(tmp_path: Path) -> None:
    def work(task: int) -> int:
        (tmp_path / str(task)).touch()
        until = time.monotonic() + 30
        while task == 0 and not (tmp_path / "4").exists() and time.monotonic() < until:
            time.sleep(0.01)
        return os.getpid()

    found = each(range(5), work, 2)
    assert found[0] not in found[1:] and len(set(found)) == 2


def test_no_tasks_are_no_work() -> None:
    assert each([], lambda task: task, 2) == []


def test_the_first_refusal_ends_the_others() -> None:
    def work(task: int) -> None:
        if task == 0:
            raise CheckpointError("file 0")
        time.sleep(600)

    with pytest.raises(CheckpointError, match="file 0"):
        each(range(2), work, 2)


def test_an_error_of_a_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing: No such file"):
        each(["missing"], lambda name: (tmp_path / name).read_text(), 1)


def test_any_other_error_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        each([0], lambda task: 1 // task, 1)


def test_a_killed_worker_is_named_and_nobody_waits_for_it() -> None:
    def work(task: int) -> None:
        if task == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    with pytest.raises(CheckpointError, match="killed"):
        each(range(2), work, 2)


def test_a_worker_ends_nothing_that_was_garbage_before_it_began(tmp_path: Path) -> None:
    class Group:
        """As one of torch's: its end waits for threads, which a forked process does not have."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            (tmp_path / str(os.getpid())).touch()

    def work(task: int) -> int:
        gc.collect()
        return os.getpid()

    gc.disable()
    try:
        Group()
        (worker,) = each([0], work, 1)
        assert not (tmp_path / str(worker)).exists()
    finally:
        gc.enable()
    gc.collect()
    assert (tmp_path / str(os.getpid())).exists()
