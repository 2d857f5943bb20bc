"""The lease on a run, with real files and real processes; where a lock is to be missing, one that never comes."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.core.files import heartbeats
from opsctl.core.files.trusted import Untrusted
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import lease
from opsctl.run.state.lease import Held, OwnLease, look, take
from tests.facts import missing
from trainer.formats.attempt.lease import SILENT_S


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    tmp_path.chmod(0o750)
    return RunPaths(tmp_path)


def never(_held: Held) -> None:
    """Nothing says that the holding is over."""


def taken(paths: RunPaths, attempt: str = "a", job_id: int = 7, why: str | None = None, wait_s: float = 30) -> OwnLease:
    found = take(paths, attempt, job_id, "ann", lambda _: why, wait_s=wait_s, settle_s=0.3)
    assert isinstance(found, OwnLease), found
    return found


def age(path: Path, seconds: float) -> None:
    """Let the last heartbeat be so long ago."""
    at = time.time() - seconds
    os.utime(path, (at, at))


def in_child(body: Callable[[], object]) -> int:
    """Fork a process that does `body`; its id. It exits with 0 when that comes back."""
    child = os.fork()
    if child:
        return child
    with contextlib.suppress(BaseException):
        body()
        os._exit(0)
    os._exit(1)


@contextlib.contextmanager
def lock_kept_by_a_stopped_process(path: Path) -> Iterator[None]:
    ready, says = os.pipe()

    def hold() -> None:
        fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX)
        os.write(says, b".")
        os.kill(os.getpid(), signal.SIGSTOP)

    child = in_child(hold)
    os.read(ready, 1)
    os.waitpid(child, os.WUNTRACED)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_it_is_free_taken_held_and_free_again_and_the_number_only_grows(paths: RunPaths) -> None:
    assert look(paths) == lease.Seen() and look(paths).told() == ""
    first = taken(paths, "a", 7)
    seen = look(paths)
    assert seen.holder == first.holder and seen.age_s is not None and seen.age_s < 10 and not seen.is_silent
    assert seen.told().startswith(f"job 7 of ann on {os.uname().nodename} (lease 1, heartbeat ")
    held = take(paths, "b", 8, "ben", never)
    assert isinstance(held, Held) and held.holder == first.holder
    first.end("released")
    assert look(paths).holder is None
    second = taken(paths, "b", 8)
    assert (first.holder.number, second.holder.number) == (1, 2)
    first.end("released")  # too late, and no one's business
    assert look(paths).holder == second.holder


def test_the_file_is_as_open_as_its_folder_and_only_grows(paths: RunPaths) -> None:
    taken(paths).end("released")
    before = paths.lease.read_bytes()
    taken(paths, "b")
    assert paths.lease.read_bytes().startswith(before) and before.count(b"\n") == 2
    assert paths.lease.stat().st_mode & 0o777 == 0o640
    assert list(paths.state.iterdir()) == [paths.lease]


def test_a_heartbeat_moves_the_files_time_and_nothing_else(paths: RunPaths) -> None:
    own = taken(paths)
    before = paths.lease.read_bytes()
    age(paths.lease, SILENT_S + 5)
    assert look(paths).is_silent
    assert own.beat() is None
    seen = look(paths)
    assert not seen.is_silent and seen.age_s is not None and seen.age_s < 10
    age(paths.lease, 60)
    seen = look(paths)
    assert not seen.is_silent and seen.age_s is not None and 59 < seen.age_s < SILENT_S
    assert paths.lease.read_bytes() == before


def test_the_age_is_the_file_servers_and_a_clock_that_differs_changes_nothing(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(paths)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    age(paths.lease, -50.0)  # 1970, as the holder's host may think; the file's time is as it is stamped
    assert look(paths).is_silent
    os.utime(paths.lease)
    assert not look(paths).is_silent


def test_a_reader_without_write_access_sees_the_holder_without_an_age(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = taken(paths)

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(heartbeats, "create_file", refused)
    seen = look(paths)
    assert (seen.holder, seen.age_s, seen.is_silent) == (own.holder, None, False)
    assert "heartbeat" in seen.told()


def test_a_reason_ends_the_holding_and_the_overtaken_one_learns_it_at_its_next_heartbeat(paths: RunPaths) -> None:
    first = taken(paths, "a", 7)
    second = taken(paths, "b", 8, why="no heartbeat for 180 s")
    assert second.holder.number == 2
    age(paths.lease, 100)
    stamp = paths.lease.stat().st_mtime_ns
    lost = first.beat()
    assert lost is not None and "job 8 of ann" in lost and "number 2" in lost
    assert paths.lease.stat().st_mtime_ns == stamp, "the overtaken one must not make the new one look alive"
    assert second.beat() is None
    text = paths.lease.read_text()
    assert missing(text, "180 s", "job 8 of ann") == []


def test_a_holding_that_somebody_ended_is_lost(paths: RunPaths) -> None:
    own = taken(paths)
    OwnLease(paths, own.holder).end("a user's word")
    lost = own.beat()
    assert lost is not None and "a user's word" in lost
    assert taken(paths, "b").holder.number == 2


def test_of_many_that_take_it_at_once_one_has_it(paths: RunPaths) -> None:
    def contend(number: int) -> None:
        if not isinstance(take(paths, f"attempt-{number}", number, "ann", never), OwnLease):
            os._exit(3)

    children = [in_child(lambda number=number: contend(number)) for number in range(8)]  # type: ignore[misc]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, *[3] * 7]
    assert paths.lease.read_text().count('"taken"') == 1


def test_without_locks_one_has_it_all_the_same(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    together = multiprocessing.get_context("fork").Barrier(4)

    def contend(number: int) -> None:
        together.wait(60)
        if not isinstance(take(paths, f"attempt-{number}", number, "ann", never, settle_s=0.5), OwnLease):
            os._exit(3)

    children = [in_child(lambda number=number: contend(number)) for number in range(4)]  # type: ignore[misc]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, 3, 3, 3]


def test_a_process_that_stopped_with_the_lock_keeps_nobody_waiting_for_ever(paths: RunPaths) -> None:
    own = taken(paths)
    with lock_kept_by_a_stopped_process(paths.lease):
        began = time.monotonic()
        assert isinstance(take(paths, "b", 8, "ben", never, wait_s=0.2, settle_s=0.2), Held)
        own.end("released", wait_s=0.2)
        assert taken(paths, "b", wait_s=0.2).holder.number == 2
        assert time.monotonic() - began < 50


def test_a_file_that_was_removed_is_made_again_by_its_holder(paths: RunPaths) -> None:
    taken(paths).end("released")
    own = taken(paths, "b", 8)
    paths.lease.unlink()
    assert own.beat() is None
    assert look(paths).holder == own.holder and own.holder.number == 2


def test_half_a_line_that_a_crash_left_costs_no_other(paths: RunPaths) -> None:
    own = taken(paths)
    with paths.lease.open("a") as file:
        file.write('{"event": "ended", "num')
    assert own.beat() is None
    own.end("released")
    assert look(paths).holder is None and taken(paths, "b").holder.number == 2


@pytest.mark.parametrize("what", ["link", "folder", "fifo", "second name"])
def test_what_is_no_plain_file_of_its_own_is_refused_at_once_and_left_alone(
    paths: RunPaths, tmp_path: Path, what: str
) -> None:
    paths.state.mkdir(mode=0o750)
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    if what == "link":
        paths.lease.symlink_to(thesis)
    elif what == "folder":
        paths.lease.mkdir()
    elif what == "fifo":
        os.mkfifo(paths.lease)
    else:
        os.link(thesis, paths.lease)
    for act in (lambda: take(paths, "a", 7, "ann", never), lambda: look(paths)):
        with pytest.raises(OSError, match=r".") as error:
            act()
        assert error.value.strerror and str(error.value.filename).endswith("lease.jsonl")
    assert thesis.read_text() == "years of work"


def test_a_lease_in_a_world_writable_folder_is_not_trusted(paths: RunPaths) -> None:
    taken(paths)
    paths.state.chmod(0o777)
    with pytest.raises(Untrusted, match=str(paths.state)):
        look(paths)


def test_two_threads_take_turns_so_that_neither_loses_the_lock(paths: RunPaths) -> None:
    own = taken(paths)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(own.beat())) for _ in range(8)]
    for thread in threads:
        thread.start()
    own.end("released")
    for thread in threads:
        thread.join(30)
    assert len(found) == 8 and look(paths).holder is None
