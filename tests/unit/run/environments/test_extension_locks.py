from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.run.environments.extension_locks import DEAD_AFTER_S, find_locks, remove_dead


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


def test_what_torch_itself_makes_is_found_held_while_it_compiles_and_dead_when_it_was_killed(tmp_path: Path) -> None:
    """torch.utils.file_baton is torch's own, loaded by its path: torch itself takes seconds."""
    import importlib.util

    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.submodule_search_locations
    source = Path(torch.submodule_search_locations[0]) / "utils" / "file_baton.py"
    spec = importlib.util.spec_from_file_location("file_baton", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path / "adam"
    folder.mkdir()
    ready, done = os.pipe()
    child = os.fork()
    if not child:
        assert module.FileBaton(str(folder / "lock")).try_acquire()
        os.write(done, b"x")
        os.close(done)
        time.sleep(600)
    try:
        os.read(ready, 1)
        (held,) = find_locks(tmp_path, time.time() + 2 * DEAD_AFTER_S)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert held.is_held_here and not held.is_dead and held.is_own
    (left,) = find_locks(tmp_path, time.time() + 2 * DEAD_AFTER_S)
    assert not left.is_held_here and left.is_dead
    assert not find_locks(tmp_path)[0].is_dead  # an unseen node may compile there


def test_one_beside_which_something_changed_lately_is_not_dead_and_one_that_is_dead_can_be_removed(lock: Path) -> None:
    folder = lock.parents[2]
    assert [one.is_dead for one in find_locks(folder)] == [True]
    (lock.parent / "cpu_adam.o").touch()
    assert [one.is_dead for one in find_locks(folder)] == [False]
    assert remove_dead(find_locks(folder)) == [] and lock.exists()
    (lock.parent / "cpu_adam.o").unlink()
    assert remove_dead(find_locks(folder)) == [f"removed {lock}"]
    assert not lock.exists() and find_locks(folder) == []


def test_somebody_elses_is_named_with_its_owner_and_left(lock: Path, unix_user: Callable[..., str]) -> None:
    import pwd

    user = unix_user("mate")
    os.chown(lock, pwd.getpwnam(user).pw_uid, -1)
    (found,) = find_locks(lock.parents[2])
    assert (found.owner, found.is_own) == (user, False)
    assert remove_dead([found]) == [] and lock.exists()


def test_no_folder_has_no_locks(tmp_path: Path) -> None:
    assert find_locks(tmp_path / "nowhere") == []
