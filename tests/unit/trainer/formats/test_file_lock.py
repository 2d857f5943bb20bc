"""Waiting for a file's lock that another process has, and where there are no locks."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.formats.file_lock import is_locked_by_another, lock_within

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("has it", flush=True)
input()
"""


@pytest.fixture
def fd(tmp_path: Path) -> int:
    return os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


def test_a_lock_that_another_process_has_is_waited_for_and_had_when_it_is_free(tmp_path: Path, fd: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"has it\n"
        began = time.monotonic()
        assert not lock_within(fd, 0.2)
        assert 0.2 <= time.monotonic() - began < 50
        assert is_locked_by_another(fd, 0.0)
        holder.communicate(b"\n")
    assert lock_within(fd, 60)
    assert not is_locked_by_another(fd, 60.0)


def test_a_file_system_without_locks_is_not_waited_for(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", none)
    began = time.monotonic()
    assert not lock_within(fd, 60)
    assert time.monotonic() - began < 50
    assert not is_locked_by_another(fd, 60.0), "it is unknown"
