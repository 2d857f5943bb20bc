from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.transfer.hub.file_snapshot import Changed, Moment
from tests.unit.transfer.hub.sent import Desk, desk

__all__ = ["desk"]


def moment(path: Path, whole_lines: bool = False) -> Moment:
    return Moment(os.open(path, os.O_RDONLY), path.name, whole_lines)


def test_it_is_the_file_as_it_was_while_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nthr")
    with moment(path, whole_lines=True) as lines, moment(path) as all_of_it:
        with path.open("ab") as file:
            file.write(b"ee\nfour\n")
        assert (lines.read(), all_of_it.read()) == (b"one\ntwo\n", b"one\ntwo\nthr")
        assert lines.sha256 == hashlib.sha256(b"one\ntwo\n").hexdigest()
        done = subprocess.run(
            ["git", "hash-object", "--stdin"], input=b"one\ntwo\n", capture_output=True, check=True, timeout=30
        )
        assert lines.git_oid == done.stdout.decode().strip()


def test_a_line_longer_than_any_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n" + bytes(2 << 20))
    assert moment(path, whole_lines=True).size == path.stat().st_size


def test_parts_may_be_read_again_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = os.urandom(10_000)
    path.write_bytes(content)
    with moment(path) as found:
        found.seek(4_000)
        assert found.read(100) == content[4_000:4_100]
        found.seek(-100, os.SEEK_END)
        assert found.read() == content[-100:]
        found.seek(0)
        assert found.read(5_000) + found.read(9_000) == content
        assert found.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("becomes", [b"", b"new"])
def test_what_it_was_and_is_no_more_is_never_read_whole(tmp_path: Path, becomes: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(11 << 20))
    with moment(path) as found:
        with path.open("r+b") as file:
            file.truncate(0) if not becomes else file.write(becomes)
        with pytest.raises(Changed):
            found.check()


def test_a_small_file_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"five.")
    with moment(path) as found:
        path.write_bytes(b"six..")
        assert found.read() == b"five."


MEASURED = """\
import resource, sys
from opsctl.cli import main
try:
    main(["hub", "sync", "--run", sys.argv[1]])
finally:
    print("KiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.nightly
def test_memory_is_flat_in_the_size_of_files(desk: Desk) -> None:
    def peak_mib() -> float:
        words = [sys.executable, "-c", MEASURED, str(desk.folder / "run" / "run.toml")]
        done = subprocess.run(words, env=desk.environment(), text=True, capture_output=True, timeout=120)
        assert "tiny: sent: " in done.stdout, done.stderr
        return int(done.stdout.split()[-1]) / 1024

    small = peak_mib()
    with (desk.paths.tensorboard / "large.tfevents").open("wb") as file:
        file.truncate(64 << 20)
    assert peak_mib() < small + 30
