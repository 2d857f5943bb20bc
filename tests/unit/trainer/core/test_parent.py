"""Processes that end with their parent."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

from trainer.core.parent import end_with_parent

FORK = multiprocessing.get_context("fork")


def outlive(folder: Path) -> None:
    """Begin to watch the parent only when it is dead."""
    parent = os.getppid()
    (folder / "started").touch()
    while os.getppid() == parent:
        time.sleep(0.01)
    (folder / "late").touch()
    try:
        end_with_parent()
        (folder / "lived on").touch()
    finally:
        os._exit(0)


def start_and_wait(folder: Path) -> None:
    FORK.Process(target=outlive, args=(folder,)).start()
    time.sleep(600)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def test_a_process_ends_whose_parent_was_killed_before_it_was_watched(tmp_path: Path) -> None:
    reader, writer = os.pipe()  # at its end when no process has it open
    parent = FORK.Process(target=start_and_wait, args=(tmp_path,))
    parent.start()
    os.close(writer)
    wait_for(tmp_path / "started")
    parent.kill()
    parent.join()
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert (tmp_path / "late").exists() and not (tmp_path / "lived on").exists()
