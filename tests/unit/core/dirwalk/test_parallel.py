from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.core.dirwalk import parallel, sequential
from opsctl.core.dirwalk.parallel import Budget, walk
from opsctl.core.dirwalk.sequential import BEGINNING, Folder, Pending
from tests.unit.core.dirwalk.trees import Noting, Places, grow, there
from tests.users import as_user
from trainer.formats.json_text import json_line
from trainer.formats.tolerant import decode


@pytest.mark.parametrize("processes", [1, 5])
def test_several_processes_see_every_entry_once(tmp_path: Path, processes: int) -> None:
    grow(tmp_path, 40, 10)
    places = Places()
    done = walk(tmp_path, Noting(), places.take_in, Budget(processes=processes))
    assert set(places) == there(tmp_path) and set(places.values()) == {1}
    assert (done.is_done, done.entries, done.unread_count) == (True, len(places) - 1, 0)


@given(
    folders=st.integers(0, 7),
    files=st.integers(0, 4),
    entries=st.lists(st.integers(3, 20), min_size=1, max_size=4),
    processes=st.integers(1, 3),
    pending_folders=st.integers(1, 4),
)
def test_a_walk_that_stops_and_goes_on_sees_every_entry_once_and_keeps_to_its_number(
    folders: int, files: int, entries: list[int], processes: int, pending_folders: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequential, "MOST_FOLDERS", pending_folders)
        root = Path(folder)
        grow(root, folders, files)
        (root / os.fsdecode(b"\xff")).mkdir()
        places, pending, number = Places(), tuple(BEGINNING), 0
        while pending:
            most = entries[number % len(entries)]
            done = walk(root, Noting(), places.take_in, Budget(entries=most, processes=processes), pending)
            assert done.entries <= most
            pending = tuple(decode(json_line(done.pending), tuple[Pending, ...]) or ())  # as a record has it
            assert len(pending) == len(done.pending)
            number += 1
        assert set(places) == there(root) and set(places.values()) == {1}


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file system in it whose server never answers: what touches it hangs in the kernel."""
    place = tmp_path / "root" / "hung"
    place.mkdir(parents=True)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("needs /dev/fuse")
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"hung", os.fsencode(place), b"fuse", 0, options):
        os.close(fd)
        pytest.skip("needs to mount something")
    try:
        yield place.parent
    finally:
        os.close(fd)  # its server is gone: anyone who hangs gets an error
        libc.umount2(os.fsencode(place), 2)


class Ahead:
    """A clock that can be put forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


def test_a_walk_is_over_when_its_time_is_though_a_file_system_hangs(
    hung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abx":
        (hung / name).mkdir()
        (hung / name / "inner").touch()
    clock, places, time_s = Ahead(), Places(), 20.0
    monkeypatch.setattr(parallel, "time", clock)
    monkeypatch.setattr(parallel, "GRACE_S", 0.1)

    def take_in(found: list[str]) -> None:
        places.take_in(found)
        clock.ahead_s = time_s  # now that one has reported, however long it took, the time is over

    began, begin = time.monotonic(), [Pending("a"), Pending("x"), Pending("b"), Pending("hung")]
    done = walk(hung, Noting(), take_in, Budget(time_s, processes=2), begin)
    assert time.monotonic() - began < parallel.HANGS_S - time_s  # it would be given up then in any case
    assert done.hanging == ("x", "hung") and done.pending[:2] == (Pending("x"), Pending("hung"))
    # Of what was dealt out to the one that hangs nothing has counted.
    assert "b/inner" in places and set(places) <= {"a/inner", "b/inner"}
    # And the mount point can be passed by without a touch.
    places.clear()
    walk(hung, Noting(), places.take_in)
    assert set(places) == {".", "a", "a/inner", "b", "b/inner", "x", "x/inner"}


def test_what_hung_comes_after_all_else_next_time(hung: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ax":
        for file in "123":
            (hung / name).mkdir(exist_ok=True)
            (hung / name / file).touch()
    clock, places = Ahead(), Places()
    monkeypatch.setattr(parallel, "time", clock)

    def take_in(found: list[str]) -> None:
        places.take_in(found)
        if {"a/1", "x/1"} <= set(places):
            clock.ahead_s = parallel.HANGS_S  # all but the one at `hung` have reported: it is late now, and no one else

    # The three get an entry each. What hangs has used none of them up, so one is left for another.
    begin = [Pending("x"), Pending("a"), Pending("hung")]
    done = walk(hung, Noting(), take_in, Budget(entries=3, processes=3), begin)
    assert done.hanging == ("hung",) and done.pending[0] == Pending("hung") and done.entries == 3
    assert sorted(one.place for one in done.pending[1:]) == ["a", "x"]
    again = walk(hung, Noting(), places.take_in, Budget(entries=3, processes=1), done.pending)
    assert set(places) == {f"{name}/{file}" for name in "ax" for file in "123"} and set(places.values()) == {1}
    assert again.hanging == () and again.pending[0] == Pending("hung")


def test_who_has_just_been_asked_is_not_given_up_with_one_that_hangs(
    hung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in "12":
        (hung / "a").mkdir(exist_ok=True)
        (hung / "a" / file).touch()
    clock, places, end = Ahead(), Places(), parallel._end
    may_go_on, let_go_on = os.pipe()

    class Waiting(Noting):
        def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
            super().see(folder, name, seen)
            if name == "2":
                os.read(may_go_on, 1)

    def take_in(found: list[str]) -> None:
        places.take_in(found)
        clock.ahead_s = parallel.HANGS_S  # the one at `hung` is late; what is left of the other folder is asked for now

    def given_up(workers: Sequence[parallel._Worker]) -> None:
        os.write(let_go_on, b".")
        end(workers)

    for name, stand_in in (("time", clock), ("_REPORT_ENTRIES", 1), ("_end", given_up)):
        monkeypatch.setattr(parallel, name, stand_in)
    begin = [Pending("a"), Pending("hung")]
    done = walk(hung, Waiting(), take_in, Budget(processes=2), begin)
    os.close(may_go_on)
    os.close(let_go_on)
    assert done.hanging == ("hung",) and done.pending == (Pending("hung"),)
    assert places == {"a/1": 1, "a/2": 1}


class Slow(Noting):
    def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
        super().see(folder, name, seen)
        time.sleep(0.001)


class Ticks:
    """A clock for all processes, which a second of has gone by whenever one of them sees an entry: a byte each."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tick(self) -> None:
        os.write(self._fd, b".")

    def monotonic(self) -> float:
        return float(os.fstat(self._fd).st_size)


def test_a_walk_that_has_a_time_ends_by_then_and_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    grow(root, 10, 100)
    clock, places = Ticks(tmp_path / "ticks"), Places()

    class Ticking(Noting):
        def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
            super().see(folder, name, seen)
            clock.tick()

    with monkeypatch.context() as patch:
        for module in (parallel, sequential):
            patch.setattr(module, "time", clock)
        for name in ("GRACE_S", "HANGS_S"):  # none of them hangs, however long it is kept waiting
            patch.setattr(parallel, name, 1e6)
        patch.setattr(parallel, "_REPORT_S", 1e6)  # nor is it ended by a report that is due
        done = walk(root, Ticking(), places.take_in, Budget(time_s=100, processes=2))
    # When it is over each of the two is in the midst of some entries at most.
    assert not done.is_done and not done.hanging
    assert 100 <= sum(places.values()) < 100 + 2 * sequential._LOOK_EACH
    walk(root, Noting(), places.take_in, begin=done.pending)
    assert set(places) == there(root) and set(places.values()) == {1}


def test_folders_that_are_closed_to_the_reader_are_said(tmp_path: Path) -> None:
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "closed").chmod(0o700)
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o755)
    places = Places()

    def do() -> tuple[set[str], list[tuple[str, str]], int]:
        done = walk(tmp_path, Noting(), places.take_in)
        return set(places), [(one.place, one.why) for one in done.unread], done.unread_count

    if os.geteuid():
        pytest.skip("needs to become another user")
    assert as_user("nobody", do) == (
        {".", "open", "open/file", "closed"},
        [("closed", "Permission denied")],
        1,
    )


def test_a_root_that_is_not_there_and_a_visitor_that_fails_are_errors_of_the_callers(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"):
        walk(tmp_path / "none", Noting(), Places().take_in)

    class Failing(Noting):
        def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
            raise ValueError("seen enough")

    with pytest.raises(ValueError, match="seen enough"):
        walk(tmp_path, Failing(), Places().take_in)


def test_a_walk_whose_process_was_killed_is_no_walk_that_is_done(tmp_path: Path) -> None:
    class Killed(Noting):
        def see(self, folder: Folder, name: str, seen: os.stat_result) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildProcessError):
        walk(tmp_path, Killed(), Places().take_in)


def test_no_process_is_left_behind_and_none_outlives_the_one_that_asked(tmp_path: Path) -> None:
    grow(tmp_path, 30, 30)
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom opsctl.core.dirwalk.parallel import Budget, walk\n"
        "from tests.unit.core.dirwalk.test_parallel import Slow\n"
        "tell = lambda _: (print(os.popen(f'pgrep -P {os.getpid()}').read().split(), flush=True), time.sleep(60))\n"
        f"walk(Path({str(tmp_path)!r}), Slow(), tell, Budget(processes=3))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pids = [int(one) for one in eval(child.stdout.readline())]
    child.kill()
    child.wait()
    child.stdout.close()
    ends_at = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids) and time.monotonic() < ends_at:
        time.sleep(0.01)
    assert pids and not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids)


class Telling(Noting):
    """Tells which process has walked."""

    def take(self) -> list[str]:
        return [str(os.getpid())]


def who_walked(root: Path, budget: Budget | None = None, begin: Sequence[Pending] = BEGINNING) -> set[str]:
    pids: set[str] = set()
    walk(root, Telling(), pids.update, budget, begin)
    return pids


def test_more_than_a_process_for_each_core_begins_only_where_a_walk_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        (tmp_path / str(number)).mkdir()
    monkeypatch.setattr(parallel, "_cores", lambda: 1)
    monkeypatch.setattr(parallel, "_REPORT_ENTRIES", 2)
    monkeypatch.setattr(parallel, "_ALL_AFTER_S", float("inf"))
    assert len(who_walked(tmp_path)) == 1
    assert len(who_walked(tmp_path, Budget(processes=3))) == 3
    monkeypatch.setattr(parallel, "_ALL_AFTER_S", 0.0)
    assert len(who_walked(tmp_path)) == 2


def test_no_process_takes_all_the_entries_that_a_walk_may_see(tmp_path: Path) -> None:
    for name in "abc":
        for file in range(9):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / str(file)).touch()
    assert len(who_walked(tmp_path, Budget(entries=9, processes=3), [Pending(name) for name in "abc"])) == 3


def test_what_could_not_be_looked_into_is_counted_by_all_processes_and_told_up_to_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsctl.core.dirwalk.sequential.DEEPEST", 1)
    monkeypatch.setattr(parallel, "MOST_UNREAD", 3)
    begin = [Pending(f"{number}/deeper") for number in range(5)]
    done = walk(tmp_path, Noting(), Places().take_in, Budget(processes=2), begin)
    assert (done.unread_count, len(done.unread)) == (5, 3)
    assert {one.place for one in done.unread} < {one.place for one in begin}


def test_a_process_of_a_walk_imports_nothing_so_that_no_thread_of_the_one_that_asks_can_hold_it_up(
    tmp_path: Path,
) -> None:
    grow(tmp_path, 4, 4)
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom opsctl.run.permissions.apply import Opening\n"
        "from opsctl.core.dirwalk.parallel import walk\n"
        "class Telling(Opening):\n"
        "    def take(self):\n"
        "        new = sorted(set(sys.modules) - before)\n"
        "        return [*(str(one.is_fixed) for one in super().take().troubles), *new]\n"
        "found, before = set(), set(sys.modules)\n"
        f"walk(Path({str(tmp_path)!r}), Telling(os.getgid(), True), found.update)\nprint(*found)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True"]
