"""Reading a log for the page."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.ui.report.log_source import log_named
from tests.unit.ui.report.made import log_text


def test_the_last_line_counts_without_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(log_text(20).rstrip("\n"))
    source = log_named(log)
    source.read()
    assert source.course.last_iteration == 20


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OpsctlError, match="pipe"):
        log_named(tmp_path / "pipe").read()
    with pytest.raises(FileNotFoundError):
        log_named(tmp_path / "none").read()


def test_a_log_that_cannot_be_read_any_further_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.txt"
    log.write_text(log_text(50))
    source = log_named(log)

    def broken(*_: object) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        with pytest.raises(OpsctlError, match=r"log\.txt: .*[Ss]tale"):
            source.read()
    source.read()
    assert source.course.last_iteration == 50, "and read on when it can be"
