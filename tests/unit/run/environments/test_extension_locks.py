"""Locks that a killed compilation leaves in torch's folder of extensions."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.run.environments.inspection import stale_locks


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Return a lock that a compilation left two hours ago, as torch leaves it."""
    path = tmp_path / "py311_cu126" / "cpu_adam" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    (path.parent / "build.ninja").touch()
    for one in path.parent.iterdir():
        os.utime(one, (time.time() - 7200,) * 2)
    return path


def test_a_lock_is_stale_if_nothing_next_to_it_has_changed_for_an_hour(lock: Path) -> None:
    folder = lock.parents[2]
    assert [one.todo for one in stale_locks(folder, time.time())] == [f"rm {lock}"]
    (lock.parent / "cpu_adam.o").touch()
    assert stale_locks(folder, time.time()) == []
    assert stale_locks(folder / "nowhere", time.time()) == []


def test_another_users_lock_is_named_with_its_owner(lock: Path, unix_user: Callable[..., str]) -> None:
    user = unix_user("mate")
    os.chown(lock, pwd.getpwnam(user).pw_uid, -1)
    assert [one.todo for one in stale_locks(lock.parents[2], time.time())] == [f"ask {user} to remove it"]
