"""The lease: who holds it, read by anyone from lines that may be damaged, under a lock that may not be had."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.anything import any_json
from tests.facts import missing
from trainer.formats.attempt.lease import (
    LEASE_FILE,
    End,
    Holder,
    Lease,
    ended_line,
    fold,
    locked_lease,
    taken_line,
    why_lost,
)

AT = datetime(2026, 11, 22, 4, 5, 6, tzinfo=UTC)
ADA = Holder(1, "4711-a", 4711, "ada", "x01", AT)
BEN = Holder(2, "4712-b", 4712, "ben", "x02", AT)
END = End(1, "its job left", "job", AT)


def lines(*texts: str) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def test_the_lines_are_those_of_a_lease() -> None:
    assert json.loads(taken_line(ADA)) == {
        **{"event": "taken", "number": 1, "attempt": "4711-a", "job_id": 4711},
        **{"user": "ada", "host": "x01", "at": "2026-11-22T04:05:06+00:00"},
    }
    assert json.loads(ended_line(END)) == {
        **{"event": "ended", "number": 1, "why": "its job left", "by": "job", "at": "2026-11-22T04:05:06+00:00"},
    }
    assert LEASE_FILE == "lease.jsonl"


def test_the_last_to_take_it_holds_it_until_that_ends() -> None:
    assert fold(b"") == Lease()
    taken = lines(taken_line(ADA))
    assert (fold(taken).holder, fold(taken).highest) == (ADA, 1)
    ended = taken + lines(ended_line(END))
    assert fold(ended) == Lease(ADA, END)
    assert (fold(ended).holder, fold(ended).highest) == (None, 1)
    overtaken = taken + lines(taken_line(BEN))
    assert fold(overtaken).holder == BEN
    assert fold(overtaken + lines(ended_line(END))).holder == BEN, "the end of one that was overtaken ends nothing"
    both_gone = fold(overtaken + lines(ended_line(End(2))))
    assert (both_gone.holder, both_gone.highest) == (None, 2), "and gives nothing back to the one before"


def test_the_number_only_grows_and_of_two_that_took_the_same_the_first_counts() -> None:
    late = Holder(2, "4713-c", 4713, "cleo", "x03", AT)
    assert fold(lines(taken_line(BEN), taken_line(late), taken_line(ADA))).holder == BEN


RUBBISH = b"""\0\0\0
null
[]
{"event": "taken"}
{"event": "taken", "number": "3"}
{"number": 9}
{"event": "stolen", "number": 9}
{"event": "ended", "number": 7}
\xff\xfe"""


@pytest.mark.parametrize("rubbish", [b"", *RUBBISH.split(b"\n"), b"[" * 2000])
def test_what_is_no_line_is_passed_over(rubbish: bytes) -> None:
    assert fold(lines(taken_line(ADA)) + rubbish + b"\n" + lines(taken_line(BEN))) == Lease(BEN)


def test_a_line_with_a_field_that_does_not_fit_still_counts() -> None:
    said = b'{"event": "taken", "number": 5, "attempt": "a", "job_id": "x", "at": "yesterday", "new": 1}'
    assert fold(said).holder == Holder(5, "a")


@given(cut=st.integers(0, 200))
def test_a_half_line_says_nothing_and_spoils_nothing(cut: int) -> None:
    second = taken_line(BEN).encode()
    found = fold(lines(taken_line(ADA)) + second[:cut])
    assert found.holder == (BEN if cut >= len(second) else ADA)
    assert (
        fold(lines(taken_line(ADA)) + second[: min(cut, len(second) - 1)] + b"\n" + lines(taken_line(BEN))).holder
        == BEN
    )


@given(st.lists(any_json(["event", "number", "attempt", "at"]).map(json.dumps) | st.text(), max_size=4))
def test_no_file_is_an_error(texts: list[str]) -> None:
    assert fold("\n".join(texts).encode(errors="surrogatepass")).highest >= 0


def test_a_writer_is_told_who_has_overtaken_it() -> None:
    assert why_lost(Lease(), ADA) is None, "a lost file says nothing against it"
    assert why_lost(Lease(ADA), ADA) is None
    assert why_lost(Lease(ADA), BEN) is None, "nor does one that is older"
    taken, ended = why_lost(Lease(BEN), ADA) or "", why_lost(Lease(BEN, End(2)), ADA) or ""
    assert not missing(taken, "job 4712", "ben", "x02", "2") and not missing(ended, "job 4712", "ben", "x02", "2")
    assert taken != ended
    assert not missing(why_lost(Lease(ADA, END), ADA) or "", "its job left")
    other = Holder(1, "4799-z", 4799, "zoe", "x09", AT)
    assert not missing(why_lost(Lease(other), ADA) or "", "job 4799", "zoe", "x09", "1")


def test_the_file_is_made_with_its_mode_and_only_where_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / LEASE_FILE
    with pytest.raises(FileNotFoundError), locked_lease(path, 0):
        pass
    before = os.umask(0o077)
    try:
        with locked_lease(path, 0, mode_if_new=0o660) as lease:
            assert lease.is_locked
            assert lease.read() == Lease()
            os.write(lease.fd, lines(taken_line(ADA)))
            assert lease.read() == Lease(ADA)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o660
    folder = os.open(tmp_path, os.O_PATH)
    try:
        with locked_lease(LEASE_FILE, 0, dir_fd=folder) as lease:
            assert lease.read() == Lease(ADA)
    finally:
        os.close(folder)


def make_link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(lines(taken_line(BEN)))
    path.symlink_to(path.with_name("elsewhere"))


def make_second_name(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(lines(taken_line(BEN)))
    path.hardlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    "place", [make_link, make_second_name, os.mkfifo, Path.mkdir], ids=["link", "hard link", "FIFO", "folder"]
)
def test_nothing_but_a_plain_file_is_opened_and_nothing_hangs(tmp_path: Path, place: object) -> None:
    path = tmp_path / LEASE_FILE
    place(path)  # type: ignore[operator]
    with pytest.raises(OSError, match=r"symbolic links|2 names|regular file|Is a directory"):  # noqa: SIM117
        with locked_lease(path, 0, mode_if_new=0o660):
            pass


def take_often(path: str, name: str, times: int) -> None:
    for _ in range(times):
        with locked_lease(path, 30) as lease:
            assert lease.is_locked
            number = lease.read().highest + 1
            os.write(lease.fd, lines(taken_line(Holder(number, name))))


def test_processes_that_contend_take_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / LEASE_FILE
    path.touch()
    context = multiprocessing.get_context("fork")
    takers = [context.Process(target=take_often, args=(str(path), name, 25)) for name in ("one", "other")]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(60)
        assert taker.exitcode == 0
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["number"] for line in found] == list(range(1, 51))
    assert sorted(line["attempt"] for line in found) == ["one"] * 25 + ["other"] * 25


@contextlib.contextmanager
def held_by_a_stopped_process(path: Path) -> Iterator[None]:
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX)"
    code += "; print(flush=True); time.sleep(99)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        yield
    finally:
        holder.kill()
        holder.communicate()


def test_a_lock_that_a_stopped_process_holds_is_waited_for_only_so_long_and_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / LEASE_FILE
    path.write_bytes(lines(taken_line(ADA)))
    with held_by_a_stopped_process(path):
        started = time.monotonic()
        with locked_lease(path, 0.3) as lease:
            assert 0.3 <= time.monotonic() - started < 50
            assert (lease.is_locked, lease.read()) == (False, Lease(ADA))
    with locked_lease(path, 60) as lease:
        assert lease.is_locked


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_the_file_is_believed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Stands for a file system whose locks fail: there is none here that says so."""

    def without_locks(_fd: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", without_locks)
    path = tmp_path / LEASE_FILE
    path.write_bytes(lines(taken_line(ADA)))
    started = time.monotonic()
    with locked_lease(path, 30) as lease:
        assert (lease.is_locked, lease.read()) == (False, Lease(ADA))
    assert time.monotonic() - started < 25


def test_a_file_that_is_replaced_while_its_lock_is_waited_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / LEASE_FILE
    path.touch()

    def replaced_meanwhile(fd: int, operation: int) -> None:
        path.unlink()
        path.touch()
        lock(fd, operation)

    lock = fcntl.lockf
    monkeypatch.setattr(fcntl, "lockf", replaced_meanwhile)
    with pytest.raises(OSError, match=LEASE_FILE), locked_lease(path, 0):
        pass


def test_a_file_far_too_long_is_an_error_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / LEASE_FILE
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with locked_lease(path, 0) as lease, pytest.raises(OSError, match="larger than"):
        lease.read()
