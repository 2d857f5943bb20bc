"""Copying output into the training log."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.core.files.state_files import LOG_LOCK_WAIT_S, append_bytes
from opsctl.jobs.runner import main_log
from opsctl.jobs.runner.main_log import FLUSH_S, MainLog

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="a disk of one's own needs root")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "main_log.txt"


def test_only_whole_lines_are_written(path: Path) -> None:
    log = MainLog(path.parent.parent, path, copy_to_fd=None)
    log.feed(b"one\ntw")
    log.flush()
    assert path.read_text() == "one\n"
    log.feed(b"o\nthree")
    log.close()
    assert path.read_text() == "one\ntwo\nthree\n"


def test_a_line_of_our_own_comes_after_what_was_copied_and_never_inside(path: Path) -> None:
    log = MainLog(path.parent.parent, path, copy_to_fd=None)
    log.feed(b"one\ntw")
    log.add_line("START")
    log.feed(b"o\n")
    log.close()
    assert path.read_text() == "one\nSTART\ntwo\n"


def test_a_whole_line_waits_no_longer_than_the_flush_time(path: Path) -> None:
    log = MainLog(path.parent.parent, path, copy_to_fd=None)
    log.feed(b"one\n")
    time.sleep(FLUSH_S)
    log.flush_if_due()
    assert path.read_text() == "one\n"


def test_much_output_is_written_at_once(path: Path) -> None:
    log = MainLog(path.parent.parent, path, copy_to_fd=None)
    log.feed(b"x" * 70_000 + b"\n")
    assert path.stat().st_size == 70_001


def test_a_line_without_an_end_is_cut_instead_of_kept_for_ever(path: Path) -> None:
    log = MainLog(path.parent.parent, path, copy_to_fd=None)
    for _ in range(20):
        log.feed(b"\r" + b"=" * 100_000)
    assert path.stat().st_size > 1_000_000


def test_lines_that_others_append_never_split_ours(path: Path) -> None:
    path.parent.mkdir()
    code = (
        "import sys; from pathlib import Path; from opsctl.core.files.state_files import append_bytes\n"
        "log = Path(sys.argv[1])\n"
        "for n in range(300): append_bytes(log.parent, log, b'[2026-11-21 08:00:00] PULSE: run is running %06d\\n' % n)"
    )
    watchdog = subprocess.Popen([sys.executable, "-c", code, str(path)])
    log = MainLog(path.parent.parent, path, copy_to_fd=None)
    ours = b"".join(b"[default0]: iteration %8d/  100000 | lm loss: 1.0 |\n" % number for number in range(3000))
    for start in range(0, len(ours), 97):
        log.feed(ours[start : start + 97])
        if start % 970 == 0:
            log.flush()
    log.close()
    assert watchdog.wait(timeout=30) == 0
    lines = path.read_text().splitlines()
    pulse = [line for line in lines if re.fullmatch(r"\[2026-11-21 08:00:00\] PULSE: run is running \d{6}", line)]
    trainer = [
        line for line in lines if re.fullmatch(r"\[default0\]: iteration +\d+/  100000 \| lm loss: 1.0 \|", line)
    ]
    assert (len(pulse), len(trainer), len(lines)) == (300, 3000, 3300)


def test_everything_is_copied_to_the_jobs_own_output(path: Path) -> None:
    read_fd, write_fd = os.pipe()
    log = MainLog(path.parent.parent, path, copy_to_fd=write_fd)
    log.feed(b"one\n")
    log.add_line("two")
    os.close(write_fd)
    assert os.read(read_fd, 100) == b"one\ntwo\n"
    os.close(read_fd)


def test_a_log_that_cannot_be_written_gets_its_lines_later(path: Path) -> None:
    read_fd, write_fd = os.pipe()
    log = MainLog(path.parent.parent, path, copy_to_fd=write_fd)
    path.mkdir()  # an error that also root meets
    log.add_line("one")
    log.add_line("two")
    path.rmdir()
    append_bytes(path.parent.parent, path, b"three\n")
    log.add_line("four")
    assert path.read_text() == "three\none\ntwo\nfour\n"
    os.close(write_fd)
    copied = os.read(read_fd, 1000).decode()
    assert copied.count(str(path)) == 1
    os.close(read_fd)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A run's folder on a disk of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=755", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> Path:
    """A file that leaves the disk not one byte."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    return ballast


def output_and(log_path: Path, root: Path) -> tuple[MainLog, Callable[[], str]]:
    """A log, and what it has copied to the job's own output so far."""
    copy = log_path.parent.parent.with_name("job.out")
    fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return MainLog(root, log_path, copy_to_fd=fd), copy.read_text


@needs_root
def test_what_a_full_disk_did_not_take_is_written_later_once_and_in_its_order(small_disk: Path) -> None:
    path = small_disk / "logs" / "main_log.txt"
    log, output = output_and(path, small_disk)
    lines = [f"line {number:05d} {'=' * 60}" for number in range(3000)]
    for line in lines[:1000]:
        log.feed(f"{line}\n".encode())
    log.flush()
    ballast = fill(small_disk)
    for line in lines[1000:2000]:
        log.feed(f"{line}\n".encode())
    log.add_line(lines[2000])
    assert output().count("No space left on device") == 1
    os.truncate(ballast, 0)
    for line in lines[2001:]:
        log.add_line(line)
    log.finish()
    kept = path.read_text().splitlines()
    whole = [line for line in kept if line in set(lines)]
    assert whole == lines
    assert len(kept) - len(whole) <= 3, "no more than a half line for each time that the disk filled up"
    assert "No space left" not in output().splitlines()[-1]


@needs_root
def test_what_the_log_never_took_is_counted_where_its_copies_are(small_disk: Path) -> None:
    path = small_disk / "logs" / "main_log.txt"
    log, output = output_and(path, small_disk)
    log.add_line("first")
    fill(small_disk)
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"y" * 100 + b"\n"):
            pass
    for number in range(7):
        log.add_line(f"lost {number}")
    log.feed(b"half a line")
    log.finish()
    assert re.match(rf"opsctl: 8 lines .*{path}.*No space left on device", output().splitlines()[-1])
    assert output().count("lost ") == 7 and "half a line\n" in output()


def test_of_more_than_can_be_kept_the_oldest_lines_go_and_are_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main_log, "MOST_KEPT_BYTES", 100)
    log, _ = output_and(path, path.parent.parent)
    path.mkdir()
    for number in range(20):
        log.add_line(f"line {number:4d}")
    path.rmdir()
    log.add_line("last")
    log.finish()
    first, *rest = path.read_text().splitlines()
    assert first.startswith("opsctl: 11 lines ")
    assert rest == [*(f"line {number:4d}" for number in range(11, 20)), "last"]


def test_a_log_that_cannot_be_written_is_tried_again_while_nothing_more_comes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MainLog(path.parent.parent, path, copy_to_fd=None)
    path.mkdir()
    log.add_line("one")
    path.rmdir()
    log.flush_if_due()
    assert not path.exists(), "not at every look"
    monkeypatch.setattr(main_log, "RETRY_S", 0.0)
    log.flush_if_due()
    assert path.read_text() == "one\n"


def test_a_folder_that_went_is_made_again(path: Path) -> None:
    log = MainLog(path.parent.parent, path, copy_to_fd=None)
    path.parent.rmdir()
    log.add_line("one")
    log.add_line("two")
    assert path.read_text() == "one\ntwo\n"


def test_whoever_hangs_with_the_lock_is_waited_for_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    path.write_text("")
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True); time.sleep(600)"
    )
    waits_s: list[float] = []

    def appending(root: Path, file: Path, data: bytes, wait_s: float) -> bool:
        waits_s.append(wait_s)
        return append_bytes(root, file, data, wait_s)

    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        monkeypatch.setattr(main_log, "append_bytes", appending)
        log = MainLog(path.parent.parent, path, copy_to_fd=None)
        for number in range(50):
            log.add_line(str(number))
    finally:
        holder.kill()
        holder.communicate()
    assert path.read_text().split() == [str(number) for number in range(50)]
    assert waits_s == [LOG_LOCK_WAIT_S, *[0.0] * 49]


def test_a_line_that_names_what_is_no_text_is_written(path: Path) -> None:
    log = MainLog(path.parent.parent, path, copy_to_fd=None)
    log.add_line("cannot read a\udcff")
    assert path.read_text() == "cannot read a\\udcff\n"
