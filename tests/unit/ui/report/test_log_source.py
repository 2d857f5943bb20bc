"""A log that is read on as it grows."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.ui.report.log_source import log_named
from tests.unit.ui.report.made import log_text


def test_a_log_that_grows_is_read_on_and_comes_to_the_same(tmp_path: Path) -> None:
    text = log_text(400, restart_every=137).encode()
    log = tmp_path / "log.txt"
    source, whole = log_named(log), log_named(log)
    for end in (100, 5_000, 5_001, len(text) // 2, len(text)):
        log.write_bytes(text[:end]) if not log.exists() else log.open("ab").write(text[log.stat().st_size : end])
        source.look()
    assert not source.look(), "nothing is new"
    whole.look()
    for one in (source, whole):
        one.finish()
    assert source.course == whole.course and len(whole.course) == 400
    assert [list(one.iterations) for one in source.spans] == [list(one.iterations) for one in whole.spans]


def test_a_log_that_was_replaced_or_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(log_text(300))
    source = log_named(log)
    source.look()
    assert source.course.last_iteration == 300
    (tmp_path / "new.txt").write_text(log_text(50))
    (tmp_path / "new.txt").replace(log)
    assert source.look() and source.course.last_iteration == 50
    os.truncate(log, 3000)
    assert source.look() and source.course.last_iteration < 10


def test_the_last_line_counts_without_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(log_text(20).rstrip("\n"))
    source = log_named(log)
    source.look()
    source.finish()
    assert source.course.last_iteration == 20


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OpsctlError, match="pipe"):
        log_named(tmp_path / "pipe").look()
    with pytest.raises(FileNotFoundError):
        log_named(tmp_path / "none").look()


def test_a_longer_log_written_over_the_one_before_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(log_text(50))
    source, anew = log_named(log), log_named(log)
    source.look()
    log.write_text(log_text(80, seconds=50.0))
    assert source.look() and anew.look()
    assert source.course == anew.course and source.course.last_iteration == 80


def test_a_log_that_cannot_be_read_any_further_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.txt"
    log.write_text(log_text(50))
    source = log_named(log)

    def broken(*_: object) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        with pytest.raises(OpsctlError, match=r"log\.txt: .*[Ss]tale"):
            source.look()
    source.look()
    assert source.course.last_iteration == 50, "and read on when it can be"
