"""Tests of flight dumps, which `trainer.launcher.first_failure` contains."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from trainer.launcher.first_failure import _ask, _read, dumped, record_in


def test_a_recorder_that_listens_is_asked_and_what_it_writes_is_read(tmp_path: Path) -> None:
    """NCCL's recorder in a thread: it opens its pipe, and writes a dump when it is written to."""
    os.mkfifo(tmp_path / "flight-3.pipe")
    (tmp_path / "flight-3").write_text("{}")
    os.mkfifo(tmp_path / "flight-4.pipe")  # no one listens there
    pipe = os.open(tmp_path / "flight-3.pipe", os.O_RDWR)  # else a read ends while no one writes

    def record() -> None:
        os.read(pipe, 10)
        dump = {"entries": [], "pg_status": {"0": {"last_enqueued_collective": "12"}}}
        (tmp_path / "flight-3").write_text(json.dumps(dump))

    thread = threading.Thread(target=record)
    thread.start()
    found = dumped(tmp_path, [3, 4, 5], 10.0)
    thread.join()
    os.close(pipe)
    assert [(one.rank, one.group, one.enqueued) for one in found] == [(3, "0", 12)]


DUMP = json.dumps({"entries": [], "pg_status": {"0": {"last_enqueued_collective": "12"}}})

ANOTHER = os.geteuid() + 1  # account


def test_nothing_is_written_where_another_member_has_put_a_link_or_a_file_in_the_pipes_place(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("dear\n")
    (tmp_path / "flight-1.pipe").symlink_to("mine")
    os.link(tmp_path / "mine", tmp_path / "flight-2.pipe")
    os.mkfifo(tmp_path / "elsewhere")
    (tmp_path / "flight-3.pipe").symlink_to("elsewhere")
    pipe = os.open(tmp_path / "elsewhere", os.O_RDWR | os.O_NONBLOCK)
    assert dumped(tmp_path, [1, 2, 3], 0.0) == []
    assert (tmp_path / "mine").read_text() == "dear\n"
    with pytest.raises(BlockingIOError):
        os.read(pipe, 10)
    os.close(pipe)


def test_a_pipe_of_another_account_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "flight-1.pipe")
    pipe = os.open(tmp_path / "flight-1.pipe", os.O_RDWR | os.O_NONBLOCK)
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    assert not _ask(tmp_path / "flight-1.pipe")
    os.close(pipe)


def test_a_dump_is_read_from_an_own_file_alone_and_a_pipe_in_its_place_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dump").write_text(DUMP)
    assert _read(tmp_path / "dump") == DUMP.encode()
    (tmp_path / "link").symlink_to("dump")
    os.mkfifo(tmp_path / "fifo")
    writer = os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, DUMP.encode())  # anyone who reads on waits for this writer's end
    for name, why in (("link", "symbolic link"), ("fifo", "of another kind")):
        with pytest.raises(OSError, match=why):
            _read(tmp_path / name)
    os.close(writer)
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    with pytest.raises(PermissionError):
        _read(tmp_path / "dump")


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"):
        monkeypatch.setenv(name, "mine")
    record_in(tmp_path)
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == "mine"


def test_no_rank_is_told_of_a_pipe_where_the_file_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, is_told in ((Path("/proc/self"), False), (tmp_path, True)):
        for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        record_in(folder)
        assert ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in os.environ) == is_told
        assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == str(folder / "flight-"), "a dump at a time-out is a file"
    assert not list(tmp_path.iterdir())
