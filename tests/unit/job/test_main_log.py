"""Copying output into the training log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opsctl.job.main_log import FLUSH_S, MainLog
from opsctl.records.state_files import append_line


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
    log.say("START")
    log.feed(b"o\n")
    log.close()
    assert path.read_text() == "one\nSTART\ntwo\n"


def test_a_whole_line_waits_no_longer_than_the_flush_time(path: Path) -> None:
    log = MainLog(path.parent.parent, path, copy_to_fd=None)
    log.feed(b"one\n")
    deadline = time.monotonic() + 5 * FLUSH_S
    while not path.exists() and time.monotonic() < deadline:
        log.flush_if_due()
        time.sleep(0.01)
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
        "import sys; from pathlib import Path; from opsctl.records.state_files import append_line\n"
        "log = Path(sys.argv[1])\n"
        "for n in range(300): append_line(log.parent, log, f'[2026-11-21 08:00:00] PULSE: run is running {n:06d}')"
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
    log.say("two")
    os.close(write_fd)
    assert os.read(read_fd, 100) == b"one\ntwo\n"
    os.close(read_fd)


def test_a_log_that_cannot_be_written_gets_its_lines_later(path: Path) -> None:
    read_fd, write_fd = os.pipe()
    log = MainLog(path.parent.parent, path, copy_to_fd=write_fd)
    path.mkdir()  # an error that also root meets
    log.say("one")
    log.say("two")
    path.rmdir()
    append_line(path.parent.parent, path, "three")
    log.say("four")
    assert path.read_text() == "three\none\ntwo\nfour\n"
    os.close(write_fd)
    copied = os.read(read_fd, 1000).decode()
    assert copied.count("cannot write") == 1
    os.close(read_fd)
